INSERT INTO stagepost_delayed (stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope, due_at)
VALUES (:stage, :message_id, :flow_id, :failures, :deaths, :deliveries, :origin_at, :envelope, :due_at)
