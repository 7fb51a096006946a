-- Index: the primary key.
SELECT coalesce(max(id), 0) + 1 FROM stagepost_journal
