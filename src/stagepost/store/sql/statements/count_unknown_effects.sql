-- Index: stagepost_effect_unknown, stagepost_effect_intent_effect.
SELECT count(DISTINCT e.id), min(i.at)
FROM stagepost_effect e
JOIN stagepost_effect_intent i ON i.effect = e.id
WHERE e.result IS NULL AND e.ending IS NULL AND NOT i.is_withdrawn
