-- Index: the primary key.
UPDATE stagepost_consumer SET seen = (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping)
WHERE address = :address AND broker = :broker AND consumer = :consumer
