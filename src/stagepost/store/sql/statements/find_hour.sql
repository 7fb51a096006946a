-- Index: the primary key.
SELECT line, position FROM stagepost_housekeeping WHERE number = :number
