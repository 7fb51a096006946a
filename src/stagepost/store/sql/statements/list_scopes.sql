-- One look-up for each scope, however many ids it has. Index: the primary key.
WITH RECURSIVE found (scope) AS (
    SELECT min(scope) FROM stagepost_accepted
    UNION ALL
    SELECT (SELECT min(a.scope) FROM stagepost_accepted AS a WHERE a.scope > found.scope)
    FROM found
    WHERE found.scope IS NOT NULL
)
SELECT scope FROM found WHERE scope IS NOT NULL
