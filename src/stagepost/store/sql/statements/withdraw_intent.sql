-- Index: the primary key.
UPDATE stagepost_effect_intent SET is_withdrawn = TRUE WHERE id = :id
