-- Those beside stagepost_meta, wherever the search path finds it. The numbers of rows are estimates.
SELECT c.relname::text,
       c.relpersistence = 'u',
       coalesce((SELECT o.option_value::boolean FROM pg_options_to_table(c.reloptions) AS o
                 WHERE o.option_name = 'autovacuum_enabled'), true),
       greatest(c.reltuples, 0)::bigint,
       coalesce(pg_stat_get_dead_tuples(c.oid), 0),
       age(c.relfrozenxid),
       pg_total_relation_size(c.oid)
FROM pg_class AS c
WHERE c.relkind = 'r' AND starts_with(c.relname::text, 'stagepost_')
  AND c.relnamespace = (SELECT m.relnamespace FROM pg_class AS m WHERE m.oid = to_regclass('stagepost_meta'))
ORDER BY c.relname COLLATE "C"
