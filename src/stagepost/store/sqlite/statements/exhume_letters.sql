-- Index: the primary key.
DELETE FROM stagepost_dead_letter
WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING id, message_id, flow_id, stage, reason, causes, stack, fingerprint, failures, deaths, deliveries, origin_at,
          dead_at, node, declared_at, envelope
