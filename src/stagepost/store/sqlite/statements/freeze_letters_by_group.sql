-- Index: stagepost_dead_letter_fingerprint.
INSERT OR IGNORE INTO stagepost_replay_letter (replay, letter)
SELECT :replay, id FROM stagepost_dead_letter
WHERE fingerprint = :value
