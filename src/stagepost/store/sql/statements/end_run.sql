UPDATE stagepost_run SET rows_in = :rows_in, ended_at = :ended_at WHERE id = :id
