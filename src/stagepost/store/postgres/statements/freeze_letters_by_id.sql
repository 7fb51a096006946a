-- Index: the primary key.
INSERT INTO stagepost_replay_letter (replay, letter)
SELECT :replay::bigint, id FROM stagepost_dead_letter
WHERE id = :value
ON CONFLICT DO NOTHING
