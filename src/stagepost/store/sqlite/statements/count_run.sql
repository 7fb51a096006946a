-- Index: the primary key, which begins with the run.
SELECT coalesce(sum(started), 0), coalesce(sum(repeated), 0), coalesce(sum(quarantined), 0)
FROM stagepost_run_chunk
WHERE run_id = ?
