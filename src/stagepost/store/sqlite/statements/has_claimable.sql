-- Read before asking for the write lock: an idle worker must not take turns with busy ones. Of a paused stage nothing
-- can be claimed but a probe, where one is due, and none is at work.
-- Index: stagepost_ready_claimable, stagepost_delayed_due; the primary key of the circuits.
SELECT EXISTS (
    SELECT 1 FROM json_each(:stages) AS s
    WHERE (EXISTS (SELECT 1 FROM stagepost_ready WHERE owner IS NULL AND stage = s.value)
           OR EXISTS (SELECT 1 FROM stagepost_delayed WHERE stage = s.value AND due_at <= :now))
      AND NOT EXISTS (SELECT 1 FROM stagepost_circuit WHERE stage = s.value AND paused_at IS NOT NULL)
), EXISTS (
    SELECT 1 FROM json_each(:stages) AS s
    CROSS JOIN stagepost_circuit AS p ON p.stage = s.value
    WHERE p.paused_at IS NOT NULL AND p.next_probe_at <= :now
      AND (p.probe IS NOT NULL
           OR EXISTS (SELECT 1 FROM stagepost_ready WHERE owner IS NULL AND stage = s.value)
           OR EXISTS (SELECT 1 FROM stagepost_delayed WHERE stage = s.value AND due_at <= :now))
      AND NOT EXISTS (SELECT 1 FROM stagepost_ready WHERE id = p.probe AND owner IS NOT NULL)
)
