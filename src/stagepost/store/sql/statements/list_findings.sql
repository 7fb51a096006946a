-- Index: stagepost_audit_finding_latest.
SELECT kind, stage, message_id, flow_id, detail, first_at, last_at
FROM stagepost_audit_finding
ORDER BY last_at DESC, kind, stage, message_id
LIMIT :limit
