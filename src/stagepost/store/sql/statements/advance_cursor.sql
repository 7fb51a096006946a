-- Index: the primary key.
UPDATE stagepost_cursor SET position = :position, used_at = :used_at,
    hour = (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping)
WHERE reader = :reader AND epoch = :epoch AND position <= :position
