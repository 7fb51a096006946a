-- Index: the primary key.
UPDATE stagepost_ready SET owner = NULL
WHERE id = :id AND owner = :owner AND deliveries = :deliveries AND message_id = :message_id
