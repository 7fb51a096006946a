-- Index: stagepost_received_at.
DELETE FROM stagepost_received WHERE message_id IN (
    SELECT message_id FROM stagepost_received WHERE received_at < :before ORDER BY received_at LIMIT :most
)
