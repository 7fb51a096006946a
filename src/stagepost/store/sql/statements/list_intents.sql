-- Index: stagepost_effect_intent_effect.
SELECT effect, id, token, owner, node, at, is_repeat, is_over, is_withdrawn
FROM stagepost_effect_intent
WHERE effect = ANY (:effects::bigint[])
ORDER BY id
