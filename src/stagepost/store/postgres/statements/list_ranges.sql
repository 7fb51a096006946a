-- Few ranges exist at a time. Index: those of the catalogue. The patterns have no backslash, because
-- standard_conforming_strings may be off.
SELECT r.name,
       coalesce(substring(r.bounds FROM 'FROM [(]''([0-9]+)''[)]')::bigint, 0),
       substring(r.bounds FROM 'TO [(]''([0-9]+)''[)]')::bigint
FROM (
    SELECT c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bounds
    FROM pg_inherits AS i
    JOIN pg_class AS c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'stagepost_journal'::regclass
) AS r
ORDER BY 2
