-- Fewest deaths first, so that one deadly message does not keep the innocent waiting.
-- Index: stagepost_suspect_due.
WITH next AS MATERIALIZED (
    SELECT id
    FROM stagepost_suspect
    WHERE stage = ANY (:stages::text[]) AND due_at <= :now
    ORDER BY deaths, due_at
    LIMIT 1
    FOR UPDATE SKIP LOCKED
), moved AS (
    DELETE FROM stagepost_suspect WHERE id = ANY (ARRAY (SELECT id FROM next)) RETURNING *
)
INSERT INTO stagepost_ready (stage, message_id, flow_id, failures, deaths, deliveries, owner, claimed_in, origin_at,
                             envelope)
SELECT stage, message_id, flow_id, failures, deaths, deliveries + 1, :owner, pg_current_xact_id(), origin_at, envelope
FROM moved
RETURNING id, owner, deliveries, stage, message_id, flow_id, failures, deaths, origin_at, envelope
