-- Index: the primary key.
SELECT coalesce(max(id), 0) FROM stagepost_journal
