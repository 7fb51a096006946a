-- Skip scans: as many steps as there are stages, however much waits for each of them.
-- Index: stagepost_ready_claimable, stagepost_delayed_due, stagepost_suspect_due; the primary key of declaration.
WITH RECURSIVE
ready (stage) AS (
    SELECT min(stage) FROM stagepost_ready WHERE owner IS NULL
    UNION ALL
    SELECT (SELECT min(r.stage) FROM stagepost_ready AS r WHERE r.owner IS NULL AND r.stage > ready.stage)
    FROM ready
    WHERE ready.stage IS NOT NULL
),
delayed (stage) AS (
    SELECT min(stage) FROM stagepost_delayed
    UNION ALL
    SELECT (SELECT min(d.stage) FROM stagepost_delayed AS d WHERE d.stage > delayed.stage)
    FROM delayed
    WHERE delayed.stage IS NOT NULL
),
suspect (stage) AS (
    SELECT min(stage) FROM stagepost_suspect
    UNION ALL
    SELECT (SELECT min(s.stage) FROM stagepost_suspect AS s WHERE s.stage > suspect.stage)
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
ORDER BY w.stage
