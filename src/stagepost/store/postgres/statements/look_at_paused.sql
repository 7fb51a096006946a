-- Reads all of it: a row for each stage that ever failed.
SELECT stage, paused_at, probes, error
FROM stagepost_streak
WHERE paused_at IS NOT NULL
ORDER BY stage
