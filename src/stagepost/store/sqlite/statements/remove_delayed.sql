DELETE FROM stagepost_delayed WHERE id IN (SELECT value FROM json_each(:ids))
