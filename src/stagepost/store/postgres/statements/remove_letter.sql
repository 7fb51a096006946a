DELETE FROM stagepost_dead_letter WHERE id = :id
