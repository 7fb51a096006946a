-- A skip scan over the index: as many steps as there are stages, however much waits for each of them.
-- Index: stagepost_ready_claimable.
WITH RECURSIVE stages (stage) AS (
    SELECT min(stage) FROM stagepost_ready WHERE owner IS NULL
    UNION ALL
    SELECT (SELECT min(r.stage) FROM stagepost_ready AS r WHERE r.owner IS NULL AND r.stage > stages.stage)
    FROM stages
    WHERE stages.stage IS NOT NULL
)
SELECT stage FROM stages WHERE stage IS NOT NULL
