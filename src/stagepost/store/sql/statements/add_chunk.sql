INSERT INTO stagepost_run_chunk (run_id, task, chunk, started, repeated, quarantined)
VALUES (:run_id, :task, :chunk, :started, :repeated, :quarantined)
