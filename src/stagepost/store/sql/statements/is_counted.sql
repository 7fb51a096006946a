-- Index: the unique one of the hours.
SELECT EXISTS (SELECT 1 FROM stagepost_housekeeping WHERE wall_hour = :wall_hour)
