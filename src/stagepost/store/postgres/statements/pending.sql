-- What stands between these stages and "drained". Index: the partial ones of ready, and those by stage of the others.
SELECT
    EXISTS (SELECT 1 FROM unnest(:stages::text[]) AS s (stage)
            WHERE EXISTS (SELECT 1 FROM stagepost_ready AS r WHERE r.owner IS NULL AND r.stage = s.stage)),
    EXISTS (SELECT 1 FROM stagepost_ready WHERE owner IS NOT NULL AND stage = ANY (:stages::text[])),
    (SELECT min(first_due) FROM unnest(:stages::text[]) AS s (stage)
     CROSS JOIN LATERAL (SELECT min(due_at) AS first_due FROM stagepost_delayed AS d WHERE d.stage = s.stage) AS f),
    (SELECT min(due_at) FROM stagepost_suspect WHERE stage = ANY (:stages::text[]))
