-- Index: stagepost_dead_letter_message.
INSERT INTO stagepost_replay_letter (replay, letter)
SELECT :replay::bigint, id FROM stagepost_dead_letter
WHERE message_id = :value
ON CONFLICT DO NOTHING
