-- Index: the primary key. Only the audit that began where the named state ended replaces it.
UPDATE stagepost_audit_state
SET folder = :folder, position = :position, named_at = :named_at,
    hour = (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping)
WHERE series = :series AND folder = :former_folder AND position = :former_position
RETURNING series
