SELECT fingerprint, stage, reason, count(*), min(dead_at), max(dead_at), max(id)
FROM stagepost_dead_letter
GROUP BY fingerprint, stage, reason
ORDER BY count(*) DESC, max(dead_at) DESC
