INSERT INTO stagepost_ready (stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope, owner)
VALUES (:stage, :message_id, :flow_id, :failures, :deaths, :deliveries::int + 1, :origin_at, :envelope, :owner)
RETURNING id, owner, deliveries, stage, message_id, flow_id, failures, deaths, origin_at, envelope
