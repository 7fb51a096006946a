-- One row for each key that is given: its place, and whether it is new. The keys come sorted, so that two transactions
-- with the same keys wait for each other in one order. A key that another open transaction has inserted is waited for.
-- Index: the primary key.
WITH given AS (
    SELECT *
    FROM unnest(:scopes::text[], :keys::text[], :digests::text[], :run_ids::text[], :accepted_at::bigint[],
                :flow_ids::text[], :is_direct::boolean[])
        WITH ORDINALITY AS g (scope, key, digest, run_id, accepted_at, flow_id, is_direct, place)
), new AS (
    INSERT INTO stagepost_accepted (scope, key, digest, run_id, accepted_at, flow_id, is_direct, hour)
    SELECT scope, key, digest, run_id, accepted_at, flow_id, is_direct,
           (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping)
    FROM given
    ORDER BY place
    ON CONFLICT (scope, key) DO NOTHING
    RETURNING scope, key
)
SELECT given.place, new.key IS NOT NULL
FROM given
LEFT JOIN new ON new.scope = given.scope AND new.key = given.key
