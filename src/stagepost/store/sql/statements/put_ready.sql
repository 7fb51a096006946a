INSERT INTO stagepost_ready (stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope)
VALUES (:stage, :message_id, :flow_id, :failures, :deaths, :deliveries, :origin_at, :envelope)
