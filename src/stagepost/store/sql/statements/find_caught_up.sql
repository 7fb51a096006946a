-- Index: the primary key.
SELECT min(hour) FROM stagepost_caught_up WHERE address = :address
