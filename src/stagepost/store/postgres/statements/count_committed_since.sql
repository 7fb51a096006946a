-- Index: stagepost_journal_txid. As much work as was done since.
SELECT node, count(*)
FROM stagepost_journal
WHERE txid >= :position AND waypoint = 'committed'
GROUP BY node
ORDER BY node COLLATE "C"
