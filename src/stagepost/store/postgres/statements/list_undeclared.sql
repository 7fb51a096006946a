-- Skip scans: as many steps as there are stages, however much waits for each of them.
-- Index: stagepost_ready_claimable, stagepost_delayed_due, stagepost_suspect_due; the primary key of declaration.
WITH RECURSIVE
ready (stage) AS (
    (SELECT stage FROM stagepost_ready WHERE owner IS NULL ORDER BY stage LIMIT 1)
    UNION ALL
    SELECT (SELECT r.stage FROM stagepost_ready AS r
            WHERE r.owner IS NULL AND r.stage > ready.stage ORDER BY r.stage LIMIT 1)
    FROM ready
    WHERE ready.stage IS NOT NULL
),
delayed (stage) AS (
    (SELECT stage FROM stagepost_delayed ORDER BY stage LIMIT 1)
    UNION ALL
    SELECT (SELECT d.stage FROM stagepost_delayed AS d WHERE d.stage > delayed.stage ORDER BY d.stage LIMIT 1)
    FROM delayed
    WHERE delayed.stage IS NOT NULL
),
suspect (stage) AS (
    (SELECT stage FROM stagepost_suspect ORDER BY stage LIMIT 1)
    UNION ALL
    SELECT (SELECT s.stage FROM stagepost_suspect AS s WHERE s.stage > suspect.stage ORDER BY s.stage LIMIT 1)
    FROM suspect
    WHERE suspect.stage IS NOT NULL
),
waiting (stage) AS (
    SELECT stage FROM ready
    UNION
    SELECT stage FROM delayed
    UNION
    SELECT stage FROM suspect
)
SELECT w.stage, d.app, d.dropped_at
FROM waiting AS w
LEFT JOIN stagepost_declaration AS d ON d.stage = w.stage
WHERE w.stage IS NOT NULL AND (d.stage IS NULL OR d.dropped_at IS NOT NULL)
ORDER BY w.stage COLLATE "C"
