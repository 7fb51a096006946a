-- For people, not for the hot path: it counts what is stored.
SELECT stage, sum(ready)::bigint, min(origin_at), sum(overdue)::bigint, min(due_at), sum(suspect)::bigint
FROM (
    SELECT stage, 1 AS ready, origin_at, 0 AS overdue, NULL::bigint AS due_at, 0 AS suspect
    FROM stagepost_ready WHERE owner IS NULL
    UNION ALL
    SELECT stage, 0, NULL, 1, due_at, 0 FROM stagepost_delayed WHERE due_at < :now
    UNION ALL
    SELECT stage, 0, NULL, 0, NULL, 1 FROM stagepost_suspect
) AS everything
GROUP BY stage
ORDER BY stage
