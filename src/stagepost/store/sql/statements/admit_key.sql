-- A message with the same key that is being handled elsewhere is waited for, for a while. Index: the primary key.
INSERT INTO stagepost_business_key (stage, key, message_id, digest, handled_at, reply)
VALUES (:stage, :key, :message_id, :digest, :handled_at, :reply)
ON CONFLICT (stage, key) DO NOTHING
