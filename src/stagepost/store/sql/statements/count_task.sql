-- An earlier attempt may still run when a later one writes. Index: the primary key.
INSERT INTO stagepost_run_task (run_id, start, task, attempt, started, repeated, quarantined)
VALUES (:run_id, :start, :task, :attempt, :started, :repeated, :quarantined)
ON CONFLICT (run_id, start, task) DO UPDATE
SET attempt = excluded.attempt, started = excluded.started, repeated = excluded.repeated,
    quarantined = excluded.quarantined
WHERE excluded.attempt >= stagepost_run_task.attempt
