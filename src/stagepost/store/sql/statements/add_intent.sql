INSERT INTO stagepost_effect_intent (effect, token, owner, node, at, is_repeat)
VALUES (:effect, :token, :owner, :node, :at, :is_repeat)
RETURNING id
