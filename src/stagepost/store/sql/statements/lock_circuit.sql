-- The stage's row, made where there is none, and locked: another failure, or another probe, waits.
-- Index: the primary key.
INSERT INTO stagepost_circuit (stage, messages, line, error) VALUES (:stage, '[]', 0, '')
ON CONFLICT (stage) DO UPDATE SET stage = excluded.stage
RETURNING stage, messages, line, error, paused_at, next_probe_at, probes, probe, probe_message
