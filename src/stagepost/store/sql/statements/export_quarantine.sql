-- One statement, so one moment. With a condition on the run, its rows are found by the primary key.
SELECT run_id, file, record, reason, flow_id, row
FROM stagepost_quarantine
