-- A purge may have removed the newest lines, so the ids that were given out count. Two housekeepers may count the same hour at
-- once: the second one finds it counted. Index: the primary key.
WITH given AS (
    SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'stagepost_journal'), 0) AS line
)
INSERT INTO stagepost_housekeeping (number, wall_hour, line, position)
SELECT coalesce(max(number), 0) + 1, :wall_hour, (SELECT line FROM given), :epoch || ':' || (SELECT line + 1 FROM given)
FROM stagepost_housekeeping WHERE true
ON CONFLICT DO NOTHING
