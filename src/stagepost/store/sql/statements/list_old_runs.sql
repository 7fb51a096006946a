-- Index: stagepost_run_hour.
SELECT id FROM stagepost_run WHERE hour <= :hour ORDER BY hour LIMIT :limit
