-- Index: the primary key.
SELECT digest FROM stagepost_accepted WHERE scope = :scope AND key = :key
