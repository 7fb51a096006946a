-- Of rows with one key, the one with the least digest wins. The keys are sorted, so that two transactions with the same
-- keys wait for each other in one order. A key that another open transaction has inserted is waited for. Index: the
-- primary keys.
WITH first AS (
    SELECT DISTINCT ON (message_id) message_id, flow_id, digest, token, place
    FROM stagepost_staged_row
    WHERE token = ANY (:tokens::text[]) AND reason IS NULL
    ORDER BY message_id, digest, token, place
), new AS (
    INSERT INTO stagepost_accepted (scope, key, digest, run_id, accepted_at, flow_id, hour)
    SELECT :scope, message_id, digest, :run_id, :now::bigint, flow_id,
           (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping)
    FROM first
    ORDER BY message_id
    ON CONFLICT (scope, key) DO NOTHING
    RETURNING key
), put AS (
    INSERT INTO stagepost_ready (stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope)
    SELECT :stage, s.message_id, s.flow_id, 0, 0, 0, s.origin_at, s.envelope
    FROM new
    JOIN first ON first.message_id = new.key
    JOIN stagepost_staged_row AS s ON s.token = first.token AND s.place = first.place
    RETURNING message_id, flow_id, origin_at, octet_length(envelope) AS bytes
)
INSERT INTO stagepost_journal (waypoint, at, node, stage, message_id, flow_id, attempt, origin_at, cause_id, kind,
                               ordinal, ms, bytes, detail)
SELECT 'accepted', :now::bigint, :node, :stage, message_id, flow_id, 0, origin_at, NULL, :kind, 0, NULL, bytes, :run_id
FROM put
