-- Index: the primary key.
DELETE FROM stagepost_run_task WHERE run_id = :run_id
