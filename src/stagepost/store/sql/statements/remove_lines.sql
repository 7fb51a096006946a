-- Index: stagepost_journal_flow.
DELETE FROM stagepost_journal
WHERE flow_id IN (SELECT f.value FROM unnest(:flow_ids::text[]) AS f (value)) AND id + 0 <= :line
