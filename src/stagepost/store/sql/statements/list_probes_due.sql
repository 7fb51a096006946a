-- Stages that another process probes at this moment are skipped. Index: the primary key.
SELECT stage, messages, line, error, paused_at, next_probe_at, probes, probe, probe_message
FROM stagepost_circuit
WHERE stage = ANY (:stages::text[]) AND paused_at IS NOT NULL AND next_probe_at <= :now
FOR UPDATE SKIP LOCKED
