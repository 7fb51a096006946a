-- Index: the primary key, which begins with the run.
SELECT coalesce(sum(started), 0)::bigint, coalesce(sum(repeated), 0)::bigint, coalesce(sum(quarantined), 0)::bigint
FROM stagepost_run_chunk
WHERE run_id = :run_id
