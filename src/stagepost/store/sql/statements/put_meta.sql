-- Index: the primary key.
INSERT INTO stagepost_meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value
