-- Index: stagepost_journal_txid. As much work as was done since, at the most. Lines that came with a dump have the numbers of
-- another server's transactions, and are before all positions. id + 0, or the planner might walk over the primary key.
SELECT EXISTS (
    SELECT 1 FROM stagepost_journal
    WHERE txid >= :position AND waypoint IN ('committed', 'failed', 'died', 'dead')
      AND id + 0 > coalesce((SELECT value::bigint FROM stagepost_meta WHERE key = 'restored'), 0)
)
