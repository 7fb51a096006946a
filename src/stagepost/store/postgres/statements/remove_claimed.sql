-- The same fence, for those who ask whether it held. Index: the primary key.
DELETE FROM stagepost_ready
WHERE id = :id AND owner = :owner AND deliveries = :deliveries AND message_id = :message_id
