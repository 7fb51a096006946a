-- For people, not for the hot path: it counts what is stored. Index: the partial ones cover ready; the others go by stage.
SELECT stage, sum(ready)::bigint, sum(claimed)::bigint, sum(delayed)::bigint, sum(suspect)::bigint, sum(dead)::bigint,
       min(origin_at)
FROM (
    SELECT stage, (owner IS NULL)::int AS ready, (owner IS NOT NULL)::int AS claimed, 0 AS delayed, 0 AS suspect,
           0 AS dead, origin_at
    FROM stagepost_ready
    UNION ALL
    SELECT stage, 0, 0, 1, 0, 0, origin_at FROM stagepost_delayed
    UNION ALL
    SELECT stage, 0, 0, 0, 1, 0, origin_at FROM stagepost_suspect
    UNION ALL
    SELECT stage, 0, 0, 0, 0, 1, NULL FROM stagepost_dead_letter
) AS everything
GROUP BY stage
ORDER BY stage
