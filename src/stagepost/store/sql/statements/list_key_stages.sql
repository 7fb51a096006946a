-- One look-up for each stage, however many keys it has. Index: the primary key.
WITH RECURSIVE found (stage) AS (
    SELECT min(stage) FROM stagepost_business_key
    UNION ALL
    SELECT (SELECT min(b.stage) FROM stagepost_business_key AS b WHERE b.stage > found.stage)
    FROM found
    WHERE found.stage IS NOT NULL
)
SELECT stage FROM found WHERE stage IS NOT NULL
