-- Index: the primary key.
UPDATE stagepost_circuit
SET messages = :messages, line = :line, error = :error, paused_at = :paused_at, next_probe_at = :next_probe_at,
    probes = :probes, probe = :probe, probe_message = :probe_message
WHERE stage = :stage
