-- The bytes go, the id stays. Index: the primary key.
UPDATE stagepost_inbox SET produced = NULL, is_sent = TRUE WHERE stage = :stage AND message_id = :message_id
