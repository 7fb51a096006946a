-- As small as there are processes with a receiver and a dispatcher.
SELECT node, broker, state, since, reason, arrived, dispatched, seen_at FROM stagepost_edge ORDER BY node
