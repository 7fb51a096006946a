DELETE FROM stagepost_suspect WHERE id = :id
