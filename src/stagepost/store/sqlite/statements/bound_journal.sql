SELECT min(id), max(id) FROM stagepost_journal
