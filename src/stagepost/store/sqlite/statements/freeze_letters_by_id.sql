-- Index: the primary key.
INSERT OR IGNORE INTO stagepost_replay_letter (replay, letter)
SELECT :replay, id FROM stagepost_dead_letter
WHERE id = :value
