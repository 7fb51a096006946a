-- Of rows with one key, the one with the least digest wins. The keys are sorted, so that two transactions with the same
-- keys wait for each other in one order. A key that another open transaction has inserted is waited for. Index: the
-- primary keys.
INSERT INTO stagepost_accepted (scope, key, digest, run_id, accepted_at, flow_id, hour)
SELECT :scope, message_id, min(digest), :run_id, :now::bigint, min(flow_id),
       (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping)
FROM stagepost_staged_row
WHERE token = ANY (:tokens::text[]) AND reason IS NULL
GROUP BY message_id
ORDER BY message_id
ON CONFLICT (scope, key) DO NOTHING
