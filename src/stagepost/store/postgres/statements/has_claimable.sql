-- Index: stagepost_ready_claimable, stagepost_delayed_due.
SELECT EXISTS (
    SELECT 1 FROM unnest(:stages::text[]) AS s (stage)
    WHERE EXISTS (SELECT 1 FROM stagepost_ready AS r WHERE r.owner IS NULL AND r.stage = s.stage)
       OR EXISTS (SELECT 1 FROM stagepost_delayed AS d WHERE d.stage = s.stage AND d.due_at <= :now)
)
