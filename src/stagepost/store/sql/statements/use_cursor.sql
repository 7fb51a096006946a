-- Index: the primary key.
UPDATE stagepost_cursor SET used_at = CASE WHEN used_at < :used_at THEN :used_at ELSE used_at END,
    hour = (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping)
WHERE reader = :reader
