-- Index: that of the selection.
INSERT INTO stagepost_replay_letter (replay, letter)
SELECT :replay::bigint, id FROM stagepost_dead_letter
WHERE {selection}
ON CONFLICT DO NOTHING
