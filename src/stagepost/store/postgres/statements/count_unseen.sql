-- Index: stagepost_journal_txid. As much work as was done since.
SELECT count(*), min(at) FROM stagepost_journal WHERE txid >= :position
