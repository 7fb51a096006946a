-- Index: the primary key.
DELETE FROM stagepost_probed WHERE stage = :stage
