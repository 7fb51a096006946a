-- Index: stagepost_journal_txid. As much work as was done since. Lines that came with a dump have the numbers of another server's
-- transactions, and are before all positions except the beginning. id + 0, or the planner might walk over the primary key.
SELECT
    node, count(*), min(at), count(*) FILTER (WHERE waypoint = 'committed'),
    count(*) FILTER (WHERE waypoint IN ('committed', 'failed', 'died', 'dead'))
FROM stagepost_journal
WHERE txid >= :position
  AND (:position = 0 OR id + 0 > coalesce((SELECT value::bigint FROM stagepost_meta WHERE key = 'restored'), 0))
GROUP BY node
