-- The hour again: the run may have begun again. Index: the primary key.
DELETE FROM stagepost_run WHERE id = :run_id AND hour + 0 <= :hour
