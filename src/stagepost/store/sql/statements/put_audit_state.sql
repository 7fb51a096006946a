-- Index: the primary key. The first audit of a series wins.
INSERT INTO stagepost_audit_state (series, folder, position, named_at, hour)
VALUES (:series, :folder, :position, :named_at,
        (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping))
ON CONFLICT (series) DO NOTHING
RETURNING series
