-- Index: stagepost_journal_message.
SELECT waypoint, at, node, stage, message_id, flow_id, attempt, origin_at, cause_id, kind, ordinal, ms, bytes, detail
FROM stagepost_journal
WHERE message_id = :message_id
ORDER BY id DESC
LIMIT :most
