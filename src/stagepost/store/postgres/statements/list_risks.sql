-- The settings that let a power failure take or damage committed rows. No session can set it otherwise.
SELECT risk
FROM (VALUES
    ('fsync_off', NOT current_setting('fsync')::boolean),
    ('full_page_writes_off', NOT current_setting('full_page_writes')::boolean),
    ('unlogged_tables', EXISTS (
        SELECT 1 FROM pg_class AS c
        WHERE c.relkind = 'r' AND c.relpersistence = 'u' AND starts_with(c.relname::text, 'stagepost_')
          AND c.relnamespace = (SELECT m.relnamespace FROM pg_class AS m WHERE m.oid = to_regclass('stagepost_meta'))
    ))
) AS r (risk, is_there)
WHERE is_there
