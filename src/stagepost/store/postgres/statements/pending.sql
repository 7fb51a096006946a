-- What stands between these stages and "drained". At a paused stage it is its next probe that is waited for, where there
-- is something to probe, and none at work; once it is given up, nothing.
-- Index: the partial ones of ready, and those by stage of the others.
WITH waiting AS (
    SELECT
        EXISTS (SELECT 1 FROM stagepost_ready AS r WHERE r.owner IS NULL AND r.stage = s.stage) AS is_ready,
        (SELECT min(d.due_at) FROM stagepost_delayed AS d WHERE d.stage = s.stage) AS due_at,
        (SELECT min(u.due_at) FROM stagepost_suspect AS u WHERE u.stage = s.stage) AS suspect_at,
        p.next_probe_at,
        p.probes,
        coalesce(p.probes >= :given_up, false) AS is_given_up,
        EXISTS (SELECT 1 FROM stagepost_ready AS r WHERE r.id = p.probe AND r.owner IS NOT NULL) AS is_probed
    FROM unnest(:stages::text[]) AS s (stage)
    LEFT JOIN stagepost_streak AS p ON p.stage = s.stage AND p.paused_at IS NOT NULL
)
SELECT
    bool_or(is_ready AND next_probe_at IS NULL),
    EXISTS (SELECT 1 FROM stagepost_ready WHERE owner IS NOT NULL AND stage = ANY (:stages::text[])),
    min(CASE WHEN next_probe_at IS NULL THEN due_at
             WHEN is_probed THEN NULL
             WHEN is_ready THEN next_probe_at
             WHEN due_at IS NOT NULL THEN greatest(next_probe_at, due_at) END),
    min(suspect_at),
    sum(CASE WHEN is_given_up AND (is_ready OR due_at IS NOT NULL OR suspect_at IS NOT NULL) THEN probes END),
    bool_or(NOT is_given_up AND (is_ready OR due_at IS NOT NULL OR suspect_at IS NOT NULL))
FROM waiting
