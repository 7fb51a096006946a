-- Index: the primary key. As much work as was done since.
SELECT node, count(*) FROM stagepost_journal WHERE id >= :position AND waypoint = 'committed' GROUP BY node ORDER BY node
