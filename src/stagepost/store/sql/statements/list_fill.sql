-- Counted no further than the two limits, so the cost does not grow with what waits.
-- Index: stagepost_ready_claimable, stagepost_ready_owned, stagepost_delayed_failed, stagepost_suspect_due.
SELECT
    s.value,
    (SELECT count(*) FROM (
        SELECT 1 FROM stagepost_ready AS r WHERE r.owner IS NULL AND r.stage = s.value LIMIT :most
    ) AS waiting)
    + (SELECT count(*) FROM (
        SELECT 1 FROM stagepost_ready AS c WHERE c.owner IS NOT NULL AND c.stage = s.value LIMIT :most
    ) AS claimed),
    (SELECT count(*) FROM (
        SELECT 1 FROM stagepost_delayed AS d WHERE d.stage = s.value AND d.failures > 0 LIMIT :failed_most
    ) AS failed)
    + (SELECT count(*) FROM (
        SELECT 1 FROM stagepost_suspect AS u WHERE u.stage = s.value LIMIT :failed_most
    ) AS suspect),
    (SELECT min(o.origin_at) FROM stagepost_ready AS o WHERE o.owner IS NULL AND o.stage = s.value)
FROM unnest(:stages::text[]) AS s (value)
