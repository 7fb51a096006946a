INSERT INTO stagepost_quarantine (run_id, file, record, reason, flow_id, row)
VALUES (:run_id, :file, :record, :reason, :flow_id, :row)
ON CONFLICT (run_id, file, record) DO NOTHING
