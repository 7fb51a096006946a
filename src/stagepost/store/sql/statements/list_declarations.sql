-- Reads all of it: a row for each stage. Index: the primary key, for the order.
SELECT stage, endpoint, app, dropped_at, types FROM stagepost_declaration ORDER BY stage
