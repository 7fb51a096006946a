INSERT INTO stagepost_ready (stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope)
SELECT stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope
FROM stagepost_delayed
WHERE id IN (SELECT value FROM json_each(:ids))
ORDER BY due_at
