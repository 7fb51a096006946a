-- Index: stagepost_dead_letter_flow.
INSERT INTO stagepost_replay_letter (replay, letter)
SELECT :replay::bigint, id FROM stagepost_dead_letter
WHERE flow_id = :value
ON CONFLICT DO NOTHING
