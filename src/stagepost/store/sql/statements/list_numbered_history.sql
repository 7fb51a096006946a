-- Index: stagepost_journal_flow.
SELECT id, waypoint, at, node, stage, message_id, flow_id, attempt, origin_at, cause_id, kind, ordinal, ms, bytes, detail
FROM stagepost_journal
WHERE flow_id = :flow_id
ORDER BY id
