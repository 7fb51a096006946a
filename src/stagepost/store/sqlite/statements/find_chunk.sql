SELECT 1 FROM stagepost_run_chunk WHERE run_id = ? AND task = ? AND chunk = ?
