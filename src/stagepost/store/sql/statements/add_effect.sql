INSERT INTO stagepost_effect (
    message_id, stage, message_index, handler, name, ordinal, flow_id, generation, digest, request
)
VALUES (
    :message_id, :stage, :message_index, :handler, :name, :ordinal, :flow_id, :generation, :digest, :request
)
RETURNING id
