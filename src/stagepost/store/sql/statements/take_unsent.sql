-- Of two transactions one marks the row, and sends its bytes. IS NOT TRUE keeps the planner from the index of all unsent
-- rows. Index: the primary key.
UPDATE stagepost_inbox SET is_sent = TRUE WHERE stage = :stage AND message_id = :message_id AND is_sent IS NOT TRUE
