-- Index: stagepost_effect_flow.
SELECT id, message_id, stage, message_index, handler, name, ordinal, flow_id, generation, digest, request, result, ending
FROM stagepost_effect
WHERE flow_id = :flow_id
ORDER BY id
