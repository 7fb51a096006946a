-- A message with the same key that is being handled elsewhere is waited for, for a while. Index: the primary key.
INSERT INTO stagepost_business_key (stage, key, message_id, digest, handled_at, reply, hour)
VALUES (:stage, :key, :message_id, :digest, :handled_at, :reply,
        (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping))
ON CONFLICT (stage, key) DO NOTHING
