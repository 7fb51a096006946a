INSERT INTO stagepost_journal (waypoint, at, node, stage, message_id, flow_id, attempt, origin_at,
                               cause_id, kind, ordinal, ms, bytes, detail)
VALUES (:waypoint, :at, :node, :stage, :message_id, :flow_id, :attempt, :origin_at, :cause_id, :kind, :ordinal, :ms,
        :bytes, :detail)
