-- For people, not for the hot path: it counts what is stored.
SELECT stage, sum(ready), min(origin_at), sum(overdue), min(due_at), sum(suspect)
FROM (
    SELECT stage, 1 AS ready, origin_at, 0 AS overdue, NULL AS due_at, 0 AS suspect
    FROM stagepost_ready WHERE owner IS NULL
    UNION ALL
    SELECT stage, 0, NULL, 1, due_at, 0 FROM stagepost_delayed WHERE due_at < :now
    UNION ALL
    SELECT stage, 0, NULL, 0, NULL, 1 FROM stagepost_suspect
)
GROUP BY stage
ORDER BY stage
