-- Index: stagepost_dead_letter_dead_at.
SELECT stage, reason, count(*)
FROM stagepost_dead_letter
WHERE dead_at >= :since
GROUP BY stage, reason
ORDER BY count(*) DESC, stage, reason
