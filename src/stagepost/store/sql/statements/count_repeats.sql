-- Index: stagepost_effect_intent_repeat.
SELECT count(*) FROM stagepost_effect_intent WHERE is_repeat
