-- Index: the primary key.
UPDATE stagepost_departure SET deaths = 0 WHERE stage = :stage AND message_id = :message_id AND deaths > 0
