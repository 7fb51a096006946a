-- A token that was raised meanwhile stays. Index: the primary key.
DELETE FROM stagepost_effect_token WHERE message_id = :message_id AND stage = :stage AND token = :token
