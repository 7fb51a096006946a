-- Every line that has an id by now is of a transaction below the snapshot's upper bound. Two housekeepers may count the
-- same hour at once: the second one finds it counted. Index: the primary key.
INSERT INTO stagepost_housekeeping (number, wall_hour, line, position, letter, replay)
SELECT coalesce(max(number), 0) + 1, :wall_hour, (SELECT coalesce(max(id), 0) FROM stagepost_journal),
       :epoch::text || ':' || pg_snapshot_xmax(pg_current_snapshot())::text,
       (SELECT coalesce(max(id), 0) FROM stagepost_dead_letter), (SELECT coalesce(max(id), 0) FROM stagepost_replay)
FROM stagepost_housekeeping
ON CONFLICT DO NOTHING
