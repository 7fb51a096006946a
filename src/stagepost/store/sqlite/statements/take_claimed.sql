-- The fence: the first statement of every stage transaction.
DELETE FROM stagepost_ready WHERE id = ? AND owner = ? AND deliveries = ?
