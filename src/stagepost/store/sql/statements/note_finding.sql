-- Index: the primary key.
INSERT INTO stagepost_audit_finding (kind, stage, message_id, flow_id, detail, first_at, last_at, hour)
VALUES (:kind, :stage, :message_id, :flow_id, :detail, :first_at, :last_at,
        (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping))
ON CONFLICT (kind, stage, message_id) DO UPDATE SET last_at = excluded.last_at, detail = excluded.detail,
    hour = excluded.hour
