INSERT INTO stagepost_accepted (scope, key, digest, run_id, accepted_at, flow_id, is_direct, hour)
VALUES (:scope, :key, :digest, :run_id, :accepted_at, :flow_id, :is_direct,
        (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping))
ON CONFLICT (scope, key) DO NOTHING
