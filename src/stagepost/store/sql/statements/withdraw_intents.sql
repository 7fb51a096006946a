-- Index: stagepost_effect_intent_effect.
UPDATE stagepost_effect_intent SET is_withdrawn = TRUE WHERE effect = :effect AND id <= :until
