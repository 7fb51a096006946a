INSERT INTO stagepost_accepted (scope, key, digest, run_id, accepted_at)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (scope, key) DO NOTHING
