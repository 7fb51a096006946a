-- The flows that have a line behind this one. Index: stagepost_journal_flow.
SELECT f.value FROM unnest(:flow_ids::text[]) AS f (value)
WHERE EXISTS (SELECT 1 FROM stagepost_journal AS k WHERE k.flow_id = f.value AND k.id + 0 > :line)
