-- Index: the primary key.
DELETE FROM stagepost_quarantine
WHERE (run_id, file, record) IN (
    SELECT q.run_id, q.file, q.record FROM stagepost_quarantine AS q WHERE q.run_id = :run_id LIMIT :limit
)
