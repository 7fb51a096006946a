-- Index: stagepost_journal_txid. The transaction in which the line after so many is, and the first one of all.
WITH restored AS MATERIALIZED (
    SELECT coalesce((SELECT value::bigint FROM stagepost_meta WHERE key = 'restored'), 0) AS id
), bounded AS MATERIALIZED (
    SELECT j.txid FROM stagepost_journal AS j, restored
    WHERE j.txid >= :begin AND j.txid < :end AND j.id + 0 > restored.id
)
SELECT (SELECT min(txid) FROM bounded), (SELECT txid FROM bounded ORDER BY txid LIMIT 1 OFFSET :lines)
