-- Index: stagepost_journal_txid. As much work as was done since, at the most.
SELECT EXISTS (
    SELECT 1 FROM stagepost_journal WHERE txid >= :position AND waypoint IN ('committed', 'failed', 'died', 'dead')
)
