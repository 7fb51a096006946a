-- Index: the primary key.
UPDATE stagepost_received SET status = %(status)s, content_type = %(content_type)s, answer = %(answer)s
WHERE message_id = %(message_id)s
