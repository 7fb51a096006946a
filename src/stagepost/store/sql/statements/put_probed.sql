INSERT INTO stagepost_probed (stage, message_id) VALUES (:stage, :message_id) ON CONFLICT DO NOTHING
