-- Index: stagepost_journal_txid for what is bounded, the primary key for the least and the greatest id. MATERIALIZED, or
-- the planner would walk over the primary key until it meets the first row of the range.
WITH bounded AS MATERIALIZED (
    SELECT id FROM stagepost_journal WHERE txid >= :begin AND :begin > 0
)
SELECT CASE WHEN :begin > 0 THEN (SELECT min(id) FROM bounded) ELSE (SELECT min(id) FROM stagepost_journal) END,
       (SELECT max(id) FROM stagepost_journal)
