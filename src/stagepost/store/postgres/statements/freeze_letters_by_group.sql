-- Index: stagepost_dead_letter_fingerprint.
INSERT INTO stagepost_replay_letter (replay, letter)
SELECT :replay::bigint, id FROM stagepost_dead_letter
WHERE fingerprint = :value
ON CONFLICT DO NOTHING
