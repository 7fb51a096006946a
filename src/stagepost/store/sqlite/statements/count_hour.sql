-- Index: the primary key. Two housekeepers may count the same hour at once: the second one finds it counted.
INSERT INTO stagepost_housekeeping (number, wall_hour, line, position)
SELECT coalesce(max(number), 0) + 1, :wall_hour, (SELECT coalesce(max(id), 0) FROM stagepost_journal),
       (SELECT value FROM stagepost_meta WHERE key = 'uuid') || ':'
           || (SELECT coalesce(max(id), 0) + 1 FROM stagepost_journal)
FROM stagepost_housekeeping WHERE true
ON CONFLICT DO NOTHING
