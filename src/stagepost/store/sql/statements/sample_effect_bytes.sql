-- About the bytes of an effect with one call: its values, 40 for each row, and 16 and the key for each index. Index: the
-- primary key.
SELECT avg(190 + 3 * (length(message_id) + length(stage)) + length(handler) + length(name) + 2 * length(flow_id)
           + length(digest) + length(request) + coalesce(length(result), 0))
FROM (SELECT message_id, stage, handler, name, flow_id, digest, request, result
      FROM stagepost_effect ORDER BY id LIMIT 1000) AS e
