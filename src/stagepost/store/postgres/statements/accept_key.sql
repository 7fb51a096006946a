-- An id that another open transaction has inserted is waited for. Index: the primary key.
INSERT INTO stagepost_accepted (scope, key, digest, run_id, accepted_at)
VALUES (:scope, :key, :digest, :run_id, :accepted_at)
ON CONFLICT (scope, key) DO NOTHING
