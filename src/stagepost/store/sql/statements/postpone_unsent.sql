-- Index: the primary key.
UPDATE stagepost_inbox SET leased_until = :until WHERE stage = :stage AND message_id = :message_id
