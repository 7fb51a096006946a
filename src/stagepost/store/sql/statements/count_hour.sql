-- Index: the primary key. Two housekeepers may count the same hour at once: the second one finds it counted.
INSERT INTO stagepost_housekeeping (number, wall_hour)
SELECT coalesce(max(number), 0) + 1, :wall_hour FROM stagepost_housekeeping WHERE true
ON CONFLICT DO NOTHING
