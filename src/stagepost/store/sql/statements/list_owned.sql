-- Index: stagepost_ready_owned.
SELECT id, owner, deliveries, stage, message_id, flow_id, failures, deaths, origin_at, envelope
FROM stagepost_ready
WHERE owner = :owner
ORDER BY id
