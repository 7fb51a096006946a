-- Index: the primary keys.
UPDATE stagepost_caught_up
SET hour = told.hour
FROM (SELECT min(hour) AS hour FROM stagepost_consumer WHERE address = :address AND broker = :broker) AS told
WHERE address = :address AND broker = :broker AND stagepost_caught_up.hour < told.hour
