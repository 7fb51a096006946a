-- Index: stagepost_audit_finding_hour.
DELETE FROM stagepost_audit_finding
WHERE (kind, stage, message_id) IN (
    SELECT f.kind, f.stage, f.message_id FROM stagepost_audit_finding AS f WHERE f.hour <= :hour
    ORDER BY f.hour
    LIMIT :limit
)
