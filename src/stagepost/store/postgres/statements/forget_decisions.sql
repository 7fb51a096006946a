-- Index: the primary key.
DELETE FROM stagepost_decision WHERE gid = ANY(:gids)
