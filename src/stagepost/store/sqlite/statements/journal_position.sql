-- A purge may have removed the newest lines, so the ids that were given out count. No index: the table has a row a table.
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'stagepost_journal'), 0) + 1
