-- Index: the primary key.
SELECT epoch, first, position, used_at FROM stagepost_cursor WHERE reader = :reader
