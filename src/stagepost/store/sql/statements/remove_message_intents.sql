-- Index: stagepost_effect_key, stagepost_effect_intent_effect.
DELETE FROM stagepost_effect_intent
WHERE effect IN (SELECT e.id FROM stagepost_effect AS e WHERE e.message_id = :message_id AND e.stage = :stage)
