-- Of starts that did not end. Index: the primary key.
DELETE FROM stagepost_run_task WHERE run_id = :run_id AND start < :start
