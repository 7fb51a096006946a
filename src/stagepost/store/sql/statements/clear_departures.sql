-- Index: the primary key.
DELETE FROM stagepost_departure WHERE stage = :stage AND message_id = ANY (:ids::text[])
