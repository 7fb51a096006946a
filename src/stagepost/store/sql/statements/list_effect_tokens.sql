-- Index: stagepost_effect_token_id.
SELECT id, message_id, stage, token FROM stagepost_effect_token WHERE id > :after ORDER BY id LIMIT :limit
