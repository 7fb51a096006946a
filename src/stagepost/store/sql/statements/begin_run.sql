INSERT INTO stagepost_run (id, target, source, started_at) VALUES (:id, :target, :source, :started_at)
