INSERT INTO stagepost_ready (stage, message_id, flow_id, failures, deaths, deliveries, owner, origin_at, envelope)
SELECT stage, message_id, flow_id, failures, deaths, deliveries + 1, :owner, origin_at, envelope
FROM stagepost_suspect
WHERE id = :id
RETURNING id, owner, deliveries, stage, message_id, flow_id, failures, deaths, origin_at, envelope
