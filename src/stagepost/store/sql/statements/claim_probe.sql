-- Claim the message with the fewest failures, among the oldest or the newest that wait and had no turn yet. The claimer
-- has the stage's row locked, so that only one claims.
-- Index: stagepost_ready_claimable; the primary key of probed, once for each.
UPDATE stagepost_ready
SET owner = :owner, deliveries = deliveries + 1, claimed_in = pg_current_xact_id()
WHERE id = (
    SELECT o.id
    FROM (
        SELECT q.id, q.failures, q.origin_at FROM stagepost_ready AS q
        WHERE q.owner IS NULL AND q.stage = :stage
          AND NOT EXISTS (
              SELECT 1 FROM stagepost_probed AS p WHERE p.stage = q.stage AND p.message_id = q.message_id
          )
        ORDER BY q.origin_at {direction}, q.id {direction}
        LIMIT :candidates
    ) AS o
    ORDER BY o.failures, o.origin_at {direction}, o.id {direction}
    LIMIT 1
) AND owner IS NULL
RETURNING id, owner, deliveries, stage, message_id, flow_id, failures, deaths, origin_at, envelope
