-- Others lease others. Index: stagepost_outbox_next, then the primary key.
WITH due AS MATERIALIZED (
    SELECT id FROM stagepost_outbox
    WHERE next_at <= :now
    ORDER BY next_at, id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE stagepost_outbox
SET next_at = :until
WHERE id IN (SELECT id FROM due)
RETURNING id, scope, key, digest, run_id, due_at, topic, node, envelope, attempts
