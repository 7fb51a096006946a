-- Index: the primary key.
INSERT INTO stagepost_received (message_id, digest, received_at) VALUES (:message_id, :digest, :received_at)
ON CONFLICT (message_id) DO NOTHING
