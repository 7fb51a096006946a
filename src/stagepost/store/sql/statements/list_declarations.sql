-- Reads all of it: a row for each stage. Index: the primary key, for the order.
SELECT stage, endpoint, app, dropped_at FROM stagepost_declaration ORDER BY stage
