SELECT rows_in FROM stagepost_run WHERE id = :id
