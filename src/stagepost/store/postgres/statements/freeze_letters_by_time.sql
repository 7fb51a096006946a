-- Index: stagepost_dead_letter_dead_at.
INSERT INTO stagepost_replay_letter (replay, letter)
SELECT :replay::bigint, id FROM stagepost_dead_letter
WHERE dead_at >= :since AND dead_at < :until
ON CONFLICT DO NOTHING
