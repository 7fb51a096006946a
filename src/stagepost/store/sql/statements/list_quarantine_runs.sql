-- Reads the runs from the newest on, until enough are found. Index: stagepost_run_started, in its order, and of each run
-- the primary key of its quarantine.
SELECT id, target, source, started_at
FROM stagepost_run AS r
WHERE EXISTS (SELECT 1 FROM stagepost_quarantine AS q WHERE q.run_id = r.id)
ORDER BY started_at DESC
LIMIT :limit
