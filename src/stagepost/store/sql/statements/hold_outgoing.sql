INSERT INTO stagepost_outbox (next_at, scope, key, digest, run_id, due_at, topic, node, held_at, envelope)
VALUES (:next_at, :scope, :key, :digest, :run_id, :due_at, :topic, :node, :held_at, :envelope)
