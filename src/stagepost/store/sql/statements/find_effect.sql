-- Index: stagepost_effect_key, backwards.
SELECT id, message_id, stage, message_index, handler, name, ordinal, flow_id, generation, digest, request, result, ending
FROM stagepost_effect
WHERE message_id = :message_id AND stage = :stage AND message_index = :message_index AND handler = :handler
    AND name = :name AND ordinal = :ordinal
ORDER BY generation DESC
LIMIT 1
