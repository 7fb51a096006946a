-- It returns no row where the token is above. Index: the primary key.
INSERT INTO stagepost_effect_token (message_id, stage, token)
VALUES (:message_id, :stage, :token)
ON CONFLICT (message_id, stage) DO UPDATE SET token = excluded.token WHERE stagepost_effect_token.token <= excluded.token
RETURNING token
