-- Of two transactions one marks the row, and sends its bytes. Index: the primary key.
UPDATE stagepost_inbox SET is_sent = TRUE WHERE stage = :stage AND message_id = :message_id AND NOT is_sent
