SELECT 1 FROM stagepost_ready WHERE id = ? AND owner = ? AND deliveries = ?
