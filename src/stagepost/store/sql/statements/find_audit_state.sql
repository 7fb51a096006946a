-- Index: the primary key.
SELECT folder, position FROM stagepost_audit_state WHERE series = :series
