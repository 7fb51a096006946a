-- Index: stagepost_journal_txid for what is bounded, the primary key for the least and the greatest id. MATERIALIZED,
-- and id + 0, or the planner would walk over the primary key until it meets the first row of the range.
WITH restored AS MATERIALIZED (
    SELECT coalesce((SELECT value::bigint FROM stagepost_meta WHERE key = 'restored'), 0) AS id
), bounded AS MATERIALIZED (
    SELECT j.id FROM stagepost_journal AS j, restored
    WHERE j.txid >= :begin AND j.txid < :end AND :begin > 0 AND j.id + 0 > restored.id
)
SELECT CASE WHEN :begin > 0 THEN (SELECT min(id) FROM bounded) ELSE (SELECT min(id) FROM stagepost_journal) END,
       CASE WHEN :begin > 0 THEN (SELECT max(id) FROM bounded) ELSE (SELECT max(id) FROM stagepost_journal) END,
       pg_current_snapshot()::text,
       (SELECT id FROM restored)
