INSERT INTO stagepost_accepted (scope, key, digest, run_id, accepted_at)
VALUES (:scope, :key, :digest, :run_id, :accepted_at)
ON CONFLICT (scope, key) DO NOTHING
