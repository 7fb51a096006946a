-- Reads the whole table.
SELECT count(*) FROM stagepost_accepted
