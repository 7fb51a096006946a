-- Index: stagepost_journal_txid for what is bounded and for what was restored, the primary key for the least and the
-- greatest id. MATERIALIZED, or the planner would walk over the primary key until it meets the first row of the range.
-- A row whose transaction this server has not begun came with a dump of another one.
WITH bounded AS MATERIALIZED (
    SELECT id FROM stagepost_journal WHERE txid >= :begin AND :begin > 0
), restored AS MATERIALIZED (
    SELECT id FROM stagepost_journal WHERE txid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
)
SELECT CASE WHEN :begin > 0 THEN (SELECT min(id) FROM bounded) ELSE (SELECT min(id) FROM stagepost_journal) END,
       (SELECT max(id) FROM stagepost_journal),
       pg_current_snapshot()::text,
       (SELECT max(id) FROM restored)
