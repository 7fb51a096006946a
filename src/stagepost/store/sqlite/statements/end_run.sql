UPDATE stagepost_run SET rows_in = ?, ended_at = ? WHERE id = ?
