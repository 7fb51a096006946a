-- Index: stagepost_housekeeping_wall_hour_key.
SELECT EXISTS (SELECT 1 FROM stagepost_housekeeping WHERE wall_hour = :wall_hour)
