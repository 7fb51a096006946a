-- Index: the primary key.
SELECT line, position, letter, replay FROM stagepost_housekeeping WHERE number = :number
