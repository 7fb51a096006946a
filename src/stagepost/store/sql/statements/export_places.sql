-- One statement, so one moment: a message that moves between the tables is seen in exactly one of them.
SELECT CASE WHEN owner IS NULL THEN 'ready' ELSE 'claimed' END AS place, stage, message_id, NULL::bigint AS due_at
FROM stagepost_ready
UNION ALL
SELECT 'delayed', stage, message_id, due_at FROM stagepost_delayed
UNION ALL
SELECT 'suspect', stage, message_id, due_at FROM stagepost_suspect
UNION ALL
SELECT 'dead letter', stage, message_id, NULL::bigint FROM stagepost_dead_letter
