-- As small as there are processes with a receiver and a dispatcher.
DELETE FROM stagepost_edge WHERE node = :node OR seen_at < :stale
