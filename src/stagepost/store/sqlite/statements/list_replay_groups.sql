-- CROSS: the set first, whatever ANALYZE found. Index: the primary keys.
SELECT d.fingerprint, d.stage, d.reason, count(*), min(d.dead_at), max(d.dead_at), max(d.id)
FROM stagepost_replay_letter AS r
CROSS JOIN stagepost_dead_letter AS d ON d.id = r.letter
WHERE r.replay = :replay
GROUP BY d.fingerprint, d.stage, d.reason
ORDER BY count(*) DESC, max(d.dead_at) DESC
