-- Index: the primary key.
UPDATE stagepost_cursor SET used_at = :used_at WHERE reader = :reader AND used_at < :used_at
