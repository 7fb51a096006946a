-- For people: dead letters are few, and have no index by time.
SELECT stage, reason, count(*)
FROM stagepost_dead_letter
WHERE dead_at >= :since
GROUP BY stage, reason
ORDER BY count(*) DESC, stage, reason
