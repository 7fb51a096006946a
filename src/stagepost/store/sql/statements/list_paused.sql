-- Reads all of it: a row for each stage that ever failed.
SELECT stage, messages, line, error, paused_at, next_probe_at, probes, probe, probe_message
FROM stagepost_circuit
WHERE paused_at IS NOT NULL
ORDER BY stage
