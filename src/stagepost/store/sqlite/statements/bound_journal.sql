-- Index: the primary key, at both ends.
SELECT (SELECT min(id) FROM stagepost_journal), (SELECT max(id) FROM stagepost_journal)
