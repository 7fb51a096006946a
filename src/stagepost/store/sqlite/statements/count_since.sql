-- Index: the primary key. As much work as was done since.
SELECT
    node, count(*), min(at), count(*) FILTER (WHERE waypoint = 'committed'),
    count(*) FILTER (WHERE waypoint IN ('committed', 'failed', 'died', 'dead'))
FROM stagepost_journal
WHERE id >= :position
GROUP BY node
