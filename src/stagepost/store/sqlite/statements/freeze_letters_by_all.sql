-- All of them: there is nothing to look up.
INSERT OR IGNORE INTO stagepost_replay_letter (replay, letter)
SELECT :replay, id FROM stagepost_dead_letter
