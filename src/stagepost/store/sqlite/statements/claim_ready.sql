-- The claimable messages of the oldest flows become ours, in one statement. The inner query is run once a stage and
-- reads at most :limit index entries each, so the cost does not grow with what waits.
-- Nothing of a paused stage. Index: stagepost_ready_claimable; the primary key of the circuits.
UPDATE stagepost_ready
SET owner = :owner, deliveries = deliveries + 1
WHERE id IN (
    SELECT r.id
    FROM json_each(:stages) AS s
    JOIN stagepost_ready AS r ON r.id IN (
        SELECT q.id FROM stagepost_ready AS q
        WHERE q.owner IS NULL AND q.stage = s.value
        ORDER BY q.origin_at, q.id
        LIMIT :limit
    )
    WHERE NOT EXISTS (SELECT 1 FROM stagepost_circuit AS p WHERE p.stage = s.value AND p.paused_at IS NOT NULL)
    ORDER BY r.origin_at, r.id
    LIMIT :limit
)
RETURNING id, owner, deliveries, stage, message_id, flow_id, failures, deaths, origin_at, envelope
