-- Index: stagepost_accepted_hour.
SELECT min(hour) FROM stagepost_accepted WHERE scope = :scope
