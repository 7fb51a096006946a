-- Index: the primary key.
SELECT is_commit FROM stagepost_decision WHERE gid = :gid
