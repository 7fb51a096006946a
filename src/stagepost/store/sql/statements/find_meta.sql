-- Index: the primary key.
SELECT value FROM stagepost_meta WHERE key = :key
