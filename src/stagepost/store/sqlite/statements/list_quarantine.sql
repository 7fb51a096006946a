SELECT file, record, reason, flow_id, row FROM stagepost_quarantine WHERE run_id = ? ORDER BY file, record
