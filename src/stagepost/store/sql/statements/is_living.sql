-- Index: stagepost_dead_letter_message, stagepost_delayed_flow, stagepost_suspect_flow, stagepost_ready_claimable,
-- stagepost_ready_owned.
SELECT EXISTS (SELECT 1 FROM stagepost_dead_letter AS l WHERE l.message_id = :message_id)
    OR EXISTS (SELECT 1 FROM stagepost_delayed AS d WHERE d.flow_id = :flow_id AND d.message_id = :message_id)
    OR EXISTS (SELECT 1 FROM stagepost_suspect AS s WHERE s.flow_id = :flow_id AND s.message_id = :message_id)
    OR EXISTS (
        SELECT 1 FROM stagepost_ready AS r
        WHERE r.owner IS NULL AND r.stage = :stage AND r.origin_at = :origin_at AND r.message_id = :message_id
    )
    OR EXISTS (SELECT 1 FROM stagepost_ready AS c WHERE c.owner IS NOT NULL AND c.message_id = :message_id)
