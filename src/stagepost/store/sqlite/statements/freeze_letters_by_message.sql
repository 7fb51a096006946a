-- Index: stagepost_dead_letter_message.
INSERT OR IGNORE INTO stagepost_replay_letter (replay, letter)
SELECT :replay, id FROM stagepost_dead_letter
WHERE message_id = :value
