-- catalog_xmin is left out: it holds on to no row of a user's table. A slot's log is measured on a primary.
SELECT slot_name::text, slot_type, active, age(xmin),
       CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint END
FROM pg_replication_slots
WHERE NOT temporary
ORDER BY slot_name
