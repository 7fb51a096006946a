-- Index: that of the selection.
SELECT id, message_id, flow_id, stage, reason, causes, stack, fingerprint, failures, deaths, deliveries, origin_at,
       dead_at, node, declared_at, envelope
FROM stagepost_dead_letter
WHERE {selection} AND id > :after
ORDER BY id
LIMIT :limit
