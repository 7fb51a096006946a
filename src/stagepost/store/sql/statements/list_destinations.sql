-- Skip scans: as many steps as there are destinations, however much waits for each of them.
-- Index: stagepost_ready_claimable, stagepost_delayed_due.
WITH RECURSIVE
ready (stage) AS (
    SELECT min(stage) FROM stagepost_ready WHERE owner IS NULL AND stage >= :first AND stage < :behind
    UNION ALL
    SELECT (SELECT min(r.stage) FROM stagepost_ready AS r
            WHERE r.owner IS NULL AND r.stage > ready.stage AND r.stage < :behind)
    FROM ready
    WHERE ready.stage IS NOT NULL
),
delayed (stage) AS (
    SELECT min(stage) FROM stagepost_delayed WHERE stage >= :first AND stage < :behind
    UNION ALL
    SELECT (SELECT min(d.stage) FROM stagepost_delayed AS d WHERE d.stage > delayed.stage AND d.stage < :behind)
    FROM delayed
    WHERE delayed.stage IS NOT NULL
)
SELECT stage FROM ready WHERE stage IS NOT NULL
UNION
SELECT stage FROM delayed WHERE stage IS NOT NULL
