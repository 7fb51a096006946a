-- Index: the primary key.
DELETE FROM stagepost_outbox WHERE id = :id
