-- About the bytes of a row of each kind: its values, 40 for itself, and 16 and the key for each index. A thousand rows of
-- each table are read, in the order of its primary key, so most of them are old. Index: the primary keys.
SELECT
    (SELECT avg(72 + 2 * (length(scope) + length(key)) + length(digest) + length(flow_id))
     FROM (SELECT scope, key, digest, flow_id FROM stagepost_accepted ORDER BY scope, key LIMIT 1000) AS a),
    (SELECT avg(72 + 2 * (length(stage) + length(message_id)) + length(digest))
     FROM (SELECT stage, message_id, digest FROM stagepost_inbox ORDER BY stage, message_id LIMIT 1000) AS i),
    (SELECT avg(72 + 2 * (length(stage) + length(key)) + length(message_id) + length(digest) + coalesce(length(reply), 0))
     FROM (SELECT stage, key, message_id, digest, reply FROM stagepost_business_key ORDER BY stage, key LIMIT 1000) AS b),
    (SELECT avg(140 + length(waypoint) + length(node) + length(stage) + 2 * (length(message_id) + length(flow_id))
                + coalesce(length(cause_id), 0) + coalesce(length(detail), 0))
     FROM (SELECT waypoint, node, stage, message_id, flow_id, cause_id, detail
           FROM stagepost_journal ORDER BY id LIMIT 1000) AS j),
    (SELECT avg(160 + 2 * (length(message_id) + length(flow_id) + length(fingerprint)) + length(stage) + length(causes)
                + length(stack) + length(node) + length(envelope))
     FROM (SELECT message_id, flow_id, fingerprint, stage, causes, stack, node, envelope
           FROM stagepost_dead_letter ORDER BY id LIMIT 1000) AS l),
    (SELECT avg(80 + length(who) + length(selection))
     FROM (SELECT who, selection FROM stagepost_replay ORDER BY id LIMIT 1000) AS r),
    (SELECT avg(56 + length(run_id) + length(file) + length(reason) + coalesce(length(flow_id), 0) + length(q.row))
     FROM (SELECT run_id, file, reason, flow_id, row
           FROM stagepost_quarantine ORDER BY run_id, file, record LIMIT 1000) AS q),
    (SELECT avg(104 + 2 * (length(kind) + length(stage) + length(message_id)) + length(flow_id) + length(detail))
     FROM (SELECT kind, stage, message_id, flow_id, detail
           FROM stagepost_audit_finding ORDER BY kind, stage, message_id LIMIT 1000) AS f)
