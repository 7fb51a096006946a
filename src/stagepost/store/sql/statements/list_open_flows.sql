-- Those of the flows that are open. A flow is open while the queue has a message of it, or a dead letter lives. The hot table has no index by flow: the
-- flow's lines say at which stages its messages may wait, and since when. Few rows of it are claimed.
-- Index: stagepost_dead_letter_flow, stagepost_delayed_flow, stagepost_suspect_flow, stagepost_journal_flow,
-- stagepost_ready_claimable.
SELECT f.value FROM unnest(:flow_ids::text[]) AS f (value)
WHERE EXISTS (SELECT 1 FROM stagepost_dead_letter AS l WHERE l.flow_id = f.value)
   OR EXISTS (SELECT 1 FROM stagepost_delayed AS d WHERE d.flow_id = f.value)
   OR EXISTS (SELECT 1 FROM stagepost_suspect AS s WHERE s.flow_id = f.value)
   OR f.value IN (SELECT c.flow_id FROM stagepost_ready AS c WHERE c.owner IS NOT NULL)
   OR EXISTS (
       SELECT 1 FROM stagepost_journal AS j
       JOIN stagepost_ready AS r ON r.stage = j.stage AND r.origin_at = j.origin_at
       WHERE j.flow_id = f.value AND r.flow_id = f.value AND r.owner IS NULL
   )
