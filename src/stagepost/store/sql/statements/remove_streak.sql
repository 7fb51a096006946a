-- Index: the primary key.
DELETE FROM stagepost_streak WHERE stage = :stage
