DELETE FROM stagepost_incarnation WHERE id = :id
