-- A purge may have removed the newest lines, so the ids that were given out count. Two housekeepers may count the same
-- hour at once: the second one finds it counted. Index: the primary key.
INSERT INTO stagepost_housekeeping (number, wall_hour, line, position, letter, replay)
SELECT coalesce(max(number), 0) + 1, :wall_hour,
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'stagepost_journal'), 0),
       :epoch || ':' || (coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'stagepost_journal'), 0) + 1),
       (SELECT coalesce(max(id), 0) FROM stagepost_dead_letter), (SELECT coalesce(max(id), 0) FROM stagepost_replay)
FROM stagepost_housekeeping WHERE true
ON CONFLICT DO NOTHING
