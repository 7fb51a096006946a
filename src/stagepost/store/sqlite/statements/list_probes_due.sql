-- Index: the primary key, once a stage.
SELECT p.stage, p.messages, p.line, p.error, p.paused_at, p.next_probe_at, p.probes, p.probe, p.probe_message
FROM json_each(:stages) AS s
CROSS JOIN stagepost_streak AS p ON p.stage = s.value
WHERE p.paused_at IS NOT NULL AND p.next_probe_at <= :now
