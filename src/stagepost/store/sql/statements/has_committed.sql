-- Index: stagepost_journal_message.
SELECT EXISTS (
    SELECT 1 FROM stagepost_journal WHERE message_id = :message_id AND stage = :stage AND waypoint = 'committed'
)
