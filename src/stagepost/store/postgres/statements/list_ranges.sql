-- Few ranges exist at a time. Index: those of the catalogue.
SELECT r.name,
       coalesce(substring(r.bounds FROM 'FROM \(''(\d+)''\)')::bigint, 0),
       substring(r.bounds FROM 'TO \(''(\d+)''\)')::bigint
FROM (
    SELECT c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bounds
    FROM pg_inherits AS i
    JOIN pg_class AS c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'stagepost_journal'::regclass
) AS r
ORDER BY 2
