-- Index: stagepost_outbox_next, then the primary key.
UPDATE stagepost_outbox
SET next_at = :until
WHERE id IN (SELECT id FROM stagepost_outbox WHERE next_at <= :now ORDER BY next_at, id LIMIT :limit)
RETURNING id, scope, key, digest, run_id, due_at, topic, node, envelope, attempts
