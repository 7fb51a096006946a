-- Index: stagepost_dead_letter_flow.
INSERT OR IGNORE INTO stagepost_replay_letter (replay, letter)
SELECT :replay, id FROM stagepost_dead_letter
WHERE flow_id = :value
