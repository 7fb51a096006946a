-- Index: stagepost_effect_flow.
DELETE FROM stagepost_effect WHERE flow_id IN (SELECT f.value FROM unnest(:flow_ids::text[]) AS f (value)) AND id + 0 <= :until
