-- Index: the primary key.
INSERT INTO stagepost_received (message_id, digest, received_at) VALUES (%(message_id)s, %(digest)s, %(received_at)s)
ON CONFLICT (message_id) DO NOTHING
