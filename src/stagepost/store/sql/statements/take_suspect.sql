-- Fewest deaths first, so that one deadly message does not keep the innocent waiting.
-- Index: stagepost_suspect_due.
DELETE FROM stagepost_suspect
WHERE id = (
    SELECT id
    FROM stagepost_suspect
    WHERE stage = ANY (:stages::text[]) AND due_at <= :now
    ORDER BY deaths, due_at
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
RETURNING stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope
