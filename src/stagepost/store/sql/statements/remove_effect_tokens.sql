-- Index: stagepost_effect_flow, and the primary key.
DELETE FROM stagepost_effect_token
WHERE (message_id, stage) IN (
    SELECT e.message_id, e.stage FROM stagepost_effect AS e
    WHERE e.flow_id IN (SELECT f.value FROM unnest(:flow_ids::text[]) AS f (value)) AND e.id + 0 <= :until
)
