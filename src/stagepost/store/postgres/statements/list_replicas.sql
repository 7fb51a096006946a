SELECT pid, application_name, state, sync_state, age(backend_xmin) FROM pg_stat_replication ORDER BY pid
