-- Counted up to a limit.
SELECT count(*) FROM (SELECT 1 FROM stagepost_decision LIMIT :limit) AS c
