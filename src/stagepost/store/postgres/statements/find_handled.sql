-- Index: the primary key.
SELECT digest, produced FROM stagepost_inbox WHERE stage = :stage AND message_id = :message_id
