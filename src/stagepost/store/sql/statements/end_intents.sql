-- Indexes: the unique one of the effects, and stagepost_effect_intent_effect.
UPDATE stagepost_effect_intent SET is_over = TRUE
WHERE token <= :token
    AND effect IN (SELECT id FROM stagepost_effect WHERE message_id = :message_id AND stage = :stage)
