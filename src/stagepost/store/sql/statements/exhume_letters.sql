-- In the order of their ids, so that two whose letters overlap wait for each other and never in a circle.
-- Index: the primary key.
WITH found AS MATERIALIZED (
    SELECT id FROM stagepost_dead_letter WHERE id = ANY (:ids::bigint[]) ORDER BY id FOR UPDATE
)
DELETE FROM stagepost_dead_letter
WHERE id IN (SELECT id FROM found)
RETURNING id, message_id, flow_id, stage, reason, causes, stack, fingerprint, failures, deaths, deliveries, origin_at,
          dead_at, node, declared_at, envelope
