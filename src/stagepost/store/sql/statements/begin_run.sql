-- Index: the primary key.
INSERT INTO stagepost_run (id, target, source, started_at, starts, hour)
VALUES (:id, :target, :source, :started_at, 1,
        (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping))
ON CONFLICT (id) DO UPDATE SET starts = stagepost_run.starts + 1, hour = excluded.hour
RETURNING starts
