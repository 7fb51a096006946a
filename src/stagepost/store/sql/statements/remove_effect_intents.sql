-- Index: stagepost_effect_flow, stagepost_effect_intent_effect.
DELETE FROM stagepost_effect_intent
WHERE effect IN (
    SELECT e.id FROM stagepost_effect AS e
    WHERE e.flow_id IN (SELECT f.value FROM unnest(:flow_ids::text[]) AS f (value)) AND e.id + 0 <= :until
)
