-- The lines that came with a dump are before all positions. Index: stagepost_journal_txid.
WITH restored AS MATERIALIZED (
    SELECT coalesce((SELECT value::bigint FROM stagepost_meta WHERE key = 'restored'), 0) AS id
), behind AS MATERIALIZED (
    SELECT j.id FROM stagepost_journal AS j, restored WHERE j.txid >= :position AND j.id + 0 > restored.id
)
SELECT coalesce((SELECT min(id) FROM behind) - 1, (SELECT max(id) FROM stagepost_journal), 0)
