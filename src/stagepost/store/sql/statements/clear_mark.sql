-- Index: the primary key.
UPDATE stagepost_accepted SET is_direct = false WHERE scope = :scope AND key = :key AND is_direct
