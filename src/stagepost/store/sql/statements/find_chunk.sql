SELECT 1 FROM stagepost_run_chunk WHERE run_id = :run_id AND task = :task AND chunk = :chunk
