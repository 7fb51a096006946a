-- Index: the primary key.
DELETE FROM stagepost_ready WHERE id = :id AND owner = :owner AND deliveries = :deliveries
