-- All of them: there is nothing to look up.
INSERT INTO stagepost_replay_letter (replay, letter)
SELECT :replay::bigint, id FROM stagepost_dead_letter
ON CONFLICT DO NOTHING
