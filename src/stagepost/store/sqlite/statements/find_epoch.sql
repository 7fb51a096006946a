-- Index: the primary key. A copy of the file keeps it: see journal_bounds.
SELECT value FROM stagepost_meta WHERE key = 'uuid'
