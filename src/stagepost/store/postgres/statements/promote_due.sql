-- The messages that are due move, in one statement. Messages that another claimer moves at this moment are skipped.
-- Index: stagepost_delayed_due, once a stage.
WITH due AS MATERIALIZED (
    SELECT d.id
    FROM unnest(:stages::text[]) AS s (stage)
    CROSS JOIN LATERAL (
        SELECT q.id, q.due_at FROM stagepost_delayed AS q
        WHERE q.stage = s.stage AND q.due_at <= :now
        ORDER BY q.due_at
        LIMIT :limit
        FOR UPDATE SKIP LOCKED
    ) AS d
    ORDER BY d.due_at
    LIMIT :limit
), moved AS (
    DELETE FROM stagepost_delayed WHERE id = ANY (ARRAY (SELECT id FROM due)) RETURNING *
)
INSERT INTO stagepost_ready (stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope)
SELECT stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope
FROM moved
ORDER BY due_at
