-- Index: the primary key.
INSERT INTO stagepost_consumer (address, broker, consumer, hour, seen)
VALUES (:address, :broker, :consumer, -1, (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping))
ON CONFLICT (address, broker, consumer) DO UPDATE SET hour = -1, seen = excluded.seen
