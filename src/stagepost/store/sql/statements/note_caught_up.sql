-- Index: the primary keys.
UPDATE stagepost_caught_up
SET hour = (SELECT min(hour) FROM stagepost_consumer WHERE address = :address AND broker = :broker)
WHERE address = :address AND broker = :broker
AND hour < (SELECT min(hour) FROM stagepost_consumer WHERE address = :address AND broker = :broker)
