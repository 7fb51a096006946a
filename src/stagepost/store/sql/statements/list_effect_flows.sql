-- Index: the primary key.
SELECT id, flow_id FROM stagepost_effect WHERE id > :after ORDER BY id LIMIT :limit
