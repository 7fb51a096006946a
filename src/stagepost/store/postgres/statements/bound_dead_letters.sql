SELECT min(id), max(id) FROM stagepost_dead_letter
