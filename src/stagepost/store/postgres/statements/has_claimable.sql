-- Of a paused stage nothing can be claimed but a probe, where one is due, and none is at work. Messages below the
-- low-water mark (:origins and :ids, see claim_ready) are skipped.
-- Index: stagepost_ready_claimable, stagepost_delayed_due; the primary key of the circuits.
SELECT EXISTS (
    SELECT 1 FROM unnest(:stages::text[], :origins::bigint[], :ids::bigint[]) AS s (stage, origin_at, id)
    WHERE (EXISTS (SELECT 1 FROM stagepost_ready AS r
                   WHERE r.owner IS NULL AND r.stage = s.stage AND (r.origin_at, r.id) > (s.origin_at, s.id))
           OR EXISTS (SELECT 1 FROM stagepost_delayed AS d WHERE d.stage = s.stage AND d.due_at <= :now))
      AND NOT EXISTS (SELECT 1 FROM stagepost_circuit AS p WHERE p.stage = s.stage AND p.paused_at IS NOT NULL)
), EXISTS (
    SELECT 1 FROM unnest(:stages::text[]) AS s (stage)
    JOIN stagepost_circuit AS p ON p.stage = s.stage
    WHERE p.paused_at IS NOT NULL AND p.next_probe_at <= :now
      AND (p.probe IS NOT NULL
           OR EXISTS (SELECT 1 FROM stagepost_ready AS r WHERE r.owner IS NULL AND r.stage = s.stage)
           OR EXISTS (SELECT 1 FROM stagepost_delayed AS d WHERE d.stage = s.stage AND d.due_at <= :now))
      AND NOT EXISTS (SELECT 1 FROM stagepost_ready AS r WHERE r.id = p.probe AND r.owner IS NOT NULL)
)
