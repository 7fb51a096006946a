-- Index: the primary key.
UPDATE stagepost_received SET status = :status, content_type = :content_type, answer = :answer
WHERE message_id = :message_id
