-- Index: the primary key.
DELETE FROM stagepost_consumer
WHERE address = :address AND broker = :broker AND seen < (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping) - :hours
