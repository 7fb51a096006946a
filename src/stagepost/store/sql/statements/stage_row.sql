INSERT INTO stagepost_staged_row (token, place, address, message_id, flow_id, digest, origin_at, envelope, reason, row)
VALUES (:token, :place, :address, :message_id, :flow_id, :digest, :origin_at, :envelope, :reason, :row)
