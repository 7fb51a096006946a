-- Index: the primary key.
UPDATE stagepost_cursor SET position = :position, used_at = :used_at
WHERE reader = :reader AND epoch = :epoch AND position <= :position
