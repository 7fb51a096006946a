-- Read before asking for the write lock: an idle worker must not take turns with busy ones.
-- Index: stagepost_ready_claimable, stagepost_delayed_due.
SELECT EXISTS (
    SELECT 1 FROM json_each(:stages) AS s
    WHERE EXISTS (SELECT 1 FROM stagepost_ready WHERE owner IS NULL AND stage = s.value)
       OR EXISTS (SELECT 1 FROM stagepost_delayed WHERE stage = s.value AND due_at <= :now)
)
