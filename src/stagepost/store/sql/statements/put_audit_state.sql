-- Index: the primary key. The first audit of a series wins.
INSERT INTO stagepost_audit_state (series, folder, position, named_at)
VALUES (:series, :folder, :position, :named_at)
ON CONFLICT (series) DO NOTHING
RETURNING series
