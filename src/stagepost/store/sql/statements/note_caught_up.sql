-- Index: the primary key.
UPDATE stagepost_caught_up SET hour = (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping)
WHERE address = :address AND broker = :broker
