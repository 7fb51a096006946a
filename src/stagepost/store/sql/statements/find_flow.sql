-- Index: stagepost_journal_message.
SELECT flow_id FROM stagepost_journal WHERE message_id = :message_id LIMIT 1
