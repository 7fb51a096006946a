-- One statement, so one moment: a message that moves between the tables is seen in exactly one of them.
SELECT CASE WHEN owner IS NULL THEN 'ready' ELSE 'claimed' END AS place, id, stage, message_id, flow_id, failures,
       deaths, deliveries, owner, origin_at, NULL::bigint AS due_at, envelope
FROM stagepost_ready
UNION ALL
SELECT 'delayed', id, stage, message_id, flow_id, failures, deaths, deliveries, NULL, origin_at, due_at, envelope
FROM stagepost_delayed
UNION ALL
SELECT 'suspect', id, stage, message_id, flow_id, failures, deaths, deliveries, NULL, origin_at, due_at, envelope
FROM stagepost_suspect
