-- Tell why these stages are not drained yet. A paused stage waits for its next probe, where there is something to probe
-- and no probe at work. A stage that is given up waits for nothing.
-- Index: the partial ones of ready, and those by stage of the others.
WITH waiting AS (
    SELECT
        EXISTS (SELECT 1 FROM stagepost_ready AS r WHERE r.owner IS NULL AND r.stage = s.value) AS is_ready,
        (SELECT min(d.due_at) FROM stagepost_delayed AS d WHERE d.stage = s.value) AS due_at,
        (SELECT min(u.due_at) FROM stagepost_suspect AS u WHERE u.stage = s.value) AS suspect_at,
        p.next_probe_at,
        p.probes,
        coalesce(p.probes >= :given_up, FALSE) AS is_given_up,
        EXISTS (SELECT 1 FROM stagepost_ready AS r WHERE r.id = p.probe AND r.owner IS NOT NULL) AS is_probed
    FROM unnest(:stages::text[]) AS s (value)
    LEFT JOIN stagepost_circuit AS p ON p.stage = s.value AND p.paused_at IS NOT NULL
)
SELECT
    max((is_ready AND next_probe_at IS NULL)::int),
    EXISTS (SELECT 1 FROM stagepost_ready WHERE owner IS NOT NULL AND stage = ANY (:stages::text[])),
    min(CASE WHEN next_probe_at IS NULL THEN due_at
             WHEN is_probed THEN NULL
             WHEN is_ready OR due_at < next_probe_at THEN next_probe_at
             ELSE due_at END),
    min(suspect_at),
    sum(CASE WHEN is_given_up AND (is_ready OR due_at IS NOT NULL OR suspect_at IS NOT NULL) THEN probes END),
    max((NOT is_given_up AND (is_ready OR due_at IS NOT NULL OR suspect_at IS NOT NULL))::int)
FROM waiting
