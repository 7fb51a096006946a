-- Index: stagepost_dead_letter_dead_at.
INSERT OR IGNORE INTO stagepost_replay_letter (replay, letter)
SELECT :replay, id FROM stagepost_dead_letter
WHERE dead_at >= :since AND dead_at < :until
