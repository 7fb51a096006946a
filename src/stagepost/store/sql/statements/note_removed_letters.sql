-- The greater of two moments stays. Index: the primary key.
INSERT INTO stagepost_meta (key, value) VALUES ('letters_removed', :dead_at)
ON CONFLICT (key) DO UPDATE SET value = excluded.value
WHERE CAST(stagepost_meta.value AS bigint) < CAST(excluded.value AS bigint)
