-- Index: the primary key.
UPDATE stagepost_accepted SET is_direct = 0 WHERE scope = :scope AND key = :key AND is_direct = 1
