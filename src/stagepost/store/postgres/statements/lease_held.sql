-- Others lease others. Index: stagepost_outbox_next, then the primary key.
WITH due AS (
    SELECT id FROM stagepost_outbox
    WHERE next_at <= :now
    ORDER BY next_at, id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
UPDATE stagepost_outbox AS held
SET next_at = :until
FROM due
WHERE held.id = due.id
RETURNING held.id, held.scope, held.key, held.digest, held.run_id, held.due_at, held.topic, held.node, held.envelope, held.attempts
