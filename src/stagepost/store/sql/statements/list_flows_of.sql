-- Index: stagepost_journal_message.
SELECT DISTINCT m.value, j.flow_id
FROM unnest(:message_ids::text[]) AS m (value)
JOIN stagepost_journal AS j ON j.message_id = m.value
