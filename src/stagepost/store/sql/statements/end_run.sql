UPDATE stagepost_run SET rows_in = :rows_in, ended_at = :now, ended_start = :start WHERE id = :id
