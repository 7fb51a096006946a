-- The decisions that their coordinators have not forgotten. Index: stagepost_decision_kept.
SELECT gid FROM stagepost_decision
WHERE is_commit = :is_commit AND decided_at <= (extract(epoch FROM statement_timestamp()) * 1000000)::bigint - :age
ORDER BY decided_at
LIMIT :limit
