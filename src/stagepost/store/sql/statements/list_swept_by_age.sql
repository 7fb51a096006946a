-- Index: stagepost_staged_age.
SELECT token FROM stagepost_staged WHERE staged_at < :before
ORDER BY staged_at LIMIT :limit FOR UPDATE SKIP LOCKED
