-- Index: stagepost_journal_txid. As much work as was done since. Lines that came with a dump have the numbers of another server's
-- transactions, and are before all positions. id + 0, or the planner might walk over the primary key.
SELECT count(*), min(at)
FROM stagepost_journal
WHERE txid >= :position
  AND id + 0 > coalesce((SELECT value::bigint FROM stagepost_meta WHERE key = 'restored'), 0)
