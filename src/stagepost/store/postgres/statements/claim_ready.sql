-- The claimable messages of the oldest flows become ours, in one statement. The inner query is run once a stage and
-- reads at most :limit index entries each, so the cost does not grow with what waits: only with the entries of messages
-- claimed before that no vacuum could remove yet, because somebody holds an old snapshot. From the low-water mark on
-- (:origins and :ids, a pair for each stage) these are skipped.
-- The ids go through an array, so that the planner cannot run the locking query again and lock more than is returned.
-- Nothing of a paused stage. Index: stagepost_ready_claimable; the primary key of the circuits.
UPDATE stagepost_ready
SET owner = :owner, deliveries = deliveries + 1, claimed_in = pg_current_xact_id()
WHERE id = ANY (ARRAY (
    SELECT r.id
    FROM unnest(:stages::text[], :origins::bigint[], :ids::bigint[]) AS s (stage, origin_at, id)
    CROSS JOIN LATERAL (
        SELECT q.id, q.origin_at FROM stagepost_ready AS q
        WHERE q.owner IS NULL AND q.stage = s.stage AND (q.origin_at, q.id) > (s.origin_at, s.id)
          AND (SELECT p.paused_at FROM stagepost_circuit AS p WHERE p.stage = s.stage) IS NULL
        ORDER BY q.origin_at, q.id
        LIMIT :limit
        FOR UPDATE SKIP LOCKED
    ) AS r
    ORDER BY r.origin_at, r.id
    LIMIT :limit
))
RETURNING id, owner, deliveries, stage, message_id, flow_id, failures, deaths, origin_at, envelope
