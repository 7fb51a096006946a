-- One statement, so one moment: an entry that is tried again keeps its row, and one that was sent is gone.
SELECT id, scope AS stage, key AS message_id, run_id, topic, attempts, next_at, due_at, held_at, node, envelope
FROM stagepost_outbox
