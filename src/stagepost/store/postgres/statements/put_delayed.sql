INSERT INTO stagepost_delayed (stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope, due_at)
SELECT stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope, due_at
FROM unnest(:stages::text[], :message_ids::text[], :flow_ids::text[], :failures::int[], :deaths::int[],
            :deliveries::int[], :origins::bigint[], :envelopes::bytea[], :due_ats::bigint[])
     WITH ORDINALITY AS row (stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope, due_at,
                             place)
ORDER BY place
