-- Index: the primary key.
UPDATE stagepost_inbox SET produced = :produced WHERE stage = :stage AND message_id = :message_id
