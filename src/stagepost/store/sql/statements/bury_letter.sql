INSERT INTO stagepost_dead_letter (message_id, flow_id, stage, reason, causes, stack, fingerprint, failures, deaths,
                                   deliveries, origin_at, dead_at, node, declared_at, envelope)
VALUES (:message_id, :flow_id, :stage, :reason, :causes, :stack, :fingerprint, :failures, :deaths, :deliveries,
        :origin_at, :dead_at, :node, :declared_at, :envelope)
