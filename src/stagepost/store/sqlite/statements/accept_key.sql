INSERT INTO stagepost_accepted (scope, key, digest, run_id, accepted_at, is_direct)
VALUES (:scope, :key, :digest, :run_id, :accepted_at, :is_direct)
ON CONFLICT (scope, key) DO NOTHING
