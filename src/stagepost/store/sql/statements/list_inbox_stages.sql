-- One look-up for each stage, however many rows it has. Index: the primary key.
WITH RECURSIVE found (stage) AS (
    SELECT min(stage) FROM stagepost_inbox
    UNION ALL
    SELECT (SELECT min(i.stage) FROM stagepost_inbox AS i WHERE i.stage > found.stage)
    FROM found
    WHERE found.stage IS NOT NULL
)
SELECT stage FROM found WHERE stage IS NOT NULL
