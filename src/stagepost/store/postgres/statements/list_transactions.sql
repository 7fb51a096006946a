-- Never the text of a query: it may hold what is nobody's business. Vacuum keeps no rows from anybody. A transaction that
-- has failed, and was not ended, has no beginning any more.
SELECT a.pid, a.application_name, coalesce(a.usename::text, ''), a.state,
       extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, a.state_change))::float8,
       extract(epoch FROM clock_timestamp() - a.state_change)::float8,
       greatest(age(a.backend_xmin), age(a.backend_xid))
FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
  AND (a.xact_start IS NOT NULL OR a.state LIKE 'idle in transaction%')
  AND a.backend_type <> 'autovacuum worker' AND a.pid NOT IN (SELECT v.pid FROM pg_stat_progress_vacuum AS v)
ORDER BY coalesce(a.xact_start, a.state_change)
LIMIT 100
