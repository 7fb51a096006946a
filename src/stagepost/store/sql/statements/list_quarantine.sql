-- Index: the primary key, in its order.
SELECT file, record, reason, flow_id, row
FROM stagepost_quarantine
WHERE run_id = :run_id AND (file, record) > (:file, :record)
ORDER BY file, record
LIMIT :limit
