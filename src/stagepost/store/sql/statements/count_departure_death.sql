-- Index: the primary key.
UPDATE stagepost_departure SET deaths = deaths + 1 WHERE stage = :stage AND message_id = :message_id RETURNING deaths
