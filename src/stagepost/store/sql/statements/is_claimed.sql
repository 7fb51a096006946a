-- Index: the primary key.
SELECT EXISTS (SELECT 1 FROM stagepost_ready WHERE id = :row AND owner IS NOT NULL)
