-- CROSS: the set first, whatever ANALYZE found in SQLite. Index: the primary keys.
SELECT d.fingerprint, d.stage, d.reason, count(*), min(d.dead_at), max(d.dead_at), max(d.id)
FROM stagepost_replay_letter AS r
CROSS JOIN stagepost_dead_letter AS d
WHERE r.replay = :replay AND d.id = r.letter
GROUP BY d.fingerprint, d.stage, d.reason
ORDER BY count(*) DESC, max(d.dead_at) DESC
