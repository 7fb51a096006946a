-- What stands between these stages and "drained". At a paused stage it is its next probe that is waited for, where there
-- is something to probe, and none at work; once it is given up, nothing.
-- Index: the partial ones of ready, and those by stage of the others.
WITH waiting AS (
    SELECT
        EXISTS (SELECT 1 FROM stagepost_ready WHERE owner IS NULL AND stage = s.value) AS is_ready,
        (SELECT min(due_at) FROM stagepost_delayed WHERE stage = s.value) AS due_at,
        (SELECT min(due_at) FROM stagepost_suspect WHERE stage = s.value) AS suspect_at,
        p.next_probe_at,
        p.probes,
        coalesce(p.probes >= :given_up, FALSE) AS is_given_up,
        EXISTS (SELECT 1 FROM stagepost_ready WHERE id = p.probe AND owner IS NOT NULL) AS is_probed
    FROM json_each(:stages) AS s
    LEFT JOIN stagepost_streak AS p ON p.stage = s.value AND p.paused_at IS NOT NULL
)
SELECT
    max(is_ready AND next_probe_at IS NULL),
    EXISTS (SELECT 1 FROM stagepost_ready
            WHERE owner IS NOT NULL AND stage IN (SELECT value FROM json_each(:stages))),
    min(CASE WHEN next_probe_at IS NULL THEN due_at
             WHEN is_probed THEN NULL
             WHEN is_ready THEN next_probe_at
             ELSE max(next_probe_at, due_at) END),
    min(suspect_at),
    sum(CASE WHEN is_given_up AND (is_ready OR due_at IS NOT NULL OR suspect_at IS NOT NULL) THEN probes END),
    max(NOT is_given_up AND (is_ready OR due_at IS NOT NULL OR suspect_at IS NOT NULL))
FROM waiting
