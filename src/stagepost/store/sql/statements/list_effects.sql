-- Index: stagepost_effect_key.
SELECT id, message_id, stage, message_index, handler, name, ordinal, flow_id, generation, digest, request, result, ending
FROM stagepost_effect
WHERE message_id = :message_id AND stage = :stage
ORDER BY id
