-- Index: the primary key.
DELETE FROM stagepost_circuit WHERE stage = :stage
