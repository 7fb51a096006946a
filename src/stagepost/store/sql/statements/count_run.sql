-- Index: the primary keys. That of the tasks begins with run and start.
SELECT coalesce(sum(started), 0)::bigint, coalesce(sum(repeated), 0)::bigint, coalesce(sum(quarantined), 0)::bigint
FROM stagepost_run_task
WHERE run_id = :run_id
    AND start = (SELECT coalesce(ended_start, starts) FROM stagepost_run WHERE id = :run_id)
