-- Of the oldest that wait and had no turn yet, the one with the fewest failures.
-- Index: stagepost_ready_claimable; the primary key of probed, once for each.
UPDATE stagepost_ready
SET owner = :owner, deliveries = deliveries + 1
WHERE id = (
    SELECT id
    FROM (
        SELECT q.id, q.failures, q.origin_at FROM stagepost_ready AS q
        WHERE q.owner IS NULL AND q.stage = :stage
          AND NOT EXISTS (
              SELECT 1 FROM stagepost_probed AS p WHERE p.stage = q.stage AND p.message_id = q.message_id
          )
        ORDER BY q.origin_at, q.id
        LIMIT :candidates
    )
    ORDER BY failures, origin_at, id
    LIMIT 1
)
RETURNING id, owner, deliveries, stage, message_id, flow_id, failures, deaths, origin_at, envelope
