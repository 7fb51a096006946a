UPDATE stagepost_ready SET owner = NULL WHERE id = ? AND owner = ? AND deliveries = ?
