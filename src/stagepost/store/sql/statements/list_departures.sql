-- Index: the primary key.
SELECT message_id, left_at FROM stagepost_departure WHERE stage = :stage AND message_id = ANY (:ids::text[])
