-- Index: the primary key.
SELECT digest, status, content_type, answer FROM stagepost_received WHERE message_id = %(message_id)s
