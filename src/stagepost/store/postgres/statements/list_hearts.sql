-- The lock is on the connection that writes the heartbeat, and nothing else: its last statement is the last beat.
SELECT i.owner, i.node, i.process, l.pid IS NOT NULL,
       extract(epoch FROM clock_timestamp() - a.state_change)::float8, i.started_at
FROM stagepost_incarnation AS i
LEFT JOIN pg_locks AS l
    ON l.locktype = 'advisory' AND l.classid = :class::int AND l.objid = i.id AND l.objsubid = 2 AND l.granted
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
ORDER BY i.id
