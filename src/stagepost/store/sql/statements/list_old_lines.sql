-- Index: the primary key.
SELECT id, flow_id FROM stagepost_journal WHERE id > :after AND id <= :line ORDER BY id LIMIT :limit
