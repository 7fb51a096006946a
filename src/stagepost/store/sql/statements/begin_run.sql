-- Index: the primary key.
INSERT INTO stagepost_run (id, target, source, started_at, starts)
VALUES (:id, :target, :source, :started_at, 1)
ON CONFLICT (id) DO UPDATE SET starts = stagepost_run.starts + 1
RETURNING starts
