-- Index: stagepost_effect_key.
DELETE FROM stagepost_effect WHERE message_id = :message_id AND stage = :stage
