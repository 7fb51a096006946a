-- One statement, however many messages. WITH ORDINALITY keeps their order.
INSERT INTO stagepost_ready (stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope)
SELECT stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope
FROM unnest(:stages::text[], :message_ids::text[], :flow_ids::text[], :failures::int[], :deaths::int[],
            :deliveries::int[], :origins::bigint[], :envelopes::bytea[])
     WITH ORDINALITY AS row (stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope, place)
ORDER BY place
