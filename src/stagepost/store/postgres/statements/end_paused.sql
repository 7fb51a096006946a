-- The stage's transaction begins by deleting its message, and so its number is in the row. One that waits for its client,
-- whose heart stands still, would keep the message for as long as that client is stopped. It finds the fence when it
-- wakes up. Index: stagepost_ready_owned.
SELECT pg_terminate_backend(a.pid)
FROM stagepost_ready AS r, pg_stat_activity AS a
WHERE r.owner = :owner AND a.backend_xid = r.xmax AND a.state = 'idle in transaction'
  AND a.usename = current_user AND a.datname = current_database()
