-- Index: the primary keys.
INSERT INTO stagepost_accepted (scope, key, digest, run_id, accepted_at, flow_id, hour)
SELECT :scope, message_id, min(digest), :run_id, :now, flow_id,
       (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping)
FROM stagepost_staged_row
WHERE token IN (SELECT value FROM json_each(:tokens)) AND reason IS NULL
GROUP BY message_id
ON CONFLICT (scope, key) DO NOTHING
