-- One statement, however many waypoints.
INSERT INTO stagepost_journal (waypoint, at, node, stage, message_id, flow_id, attempt, origin_at,
                               cause_id, kind, ordinal, ms, bytes, detail)
SELECT * FROM unnest(:waypoints::text[], :ats::bigint[], :nodes::text[], :stages::text[], :message_ids::text[],
                     :flow_ids::text[], :attempts::int[], :origins::bigint[], :cause_ids::text[], :kinds::text[],
                     :ordinals::int[], :ms::float8[], :bytes::bigint[], :details::text[])
