-- The keys that this transaction has inserted are the new ones. A join with the inserting statement itself would have no
-- index, and a plan for few rows would compare each row with each. Index: the primary keys.
WITH put AS (
    INSERT INTO stagepost_ready (stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope)
    SELECT DISTINCT ON (s.message_id) :stage, s.message_id, s.flow_id, 0, 0, 0, s.origin_at, s.envelope
    FROM stagepost_staged_row AS s
    JOIN stagepost_accepted AS a ON a.scope = :scope AND a.key = s.message_id AND a.digest = s.digest
    WHERE s.token = ANY (:tokens::text[]) AND s.reason IS NULL AND a.xmin = pg_current_xact_id()::xid
    ORDER BY s.message_id, s.token, s.place
    RETURNING message_id, flow_id, origin_at, octet_length(envelope) AS bytes
)
INSERT INTO stagepost_journal (waypoint, at, node, stage, message_id, flow_id, attempt, origin_at, cause_id, kind,
                               ordinal, ms, bytes, detail)
SELECT 'accepted', :now::bigint, :node, :stage, message_id, flow_id, 0, origin_at, NULL, :kind, 0, NULL, bytes, :run_id
FROM put
