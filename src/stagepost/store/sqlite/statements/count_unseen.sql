-- Index: the primary key. As much work as was done since.
SELECT count(*), min(at) FROM stagepost_journal WHERE id >= :position
