-- Index: the primary key.
SELECT coalesce(max(number), 0) FROM stagepost_housekeeping
