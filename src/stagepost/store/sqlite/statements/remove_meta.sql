-- Index: the primary key.
DELETE FROM stagepost_meta WHERE key = :key
