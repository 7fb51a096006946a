-- Index: the primary key.
UPDATE stagepost_effect SET result = :result WHERE id = :id AND result IS NULL
