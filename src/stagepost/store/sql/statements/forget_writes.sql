-- Index: stagepost_sink_batch_alone.
DELETE FROM stagepost_sink_batch
WHERE batch = -1 AND (sink, query) IN (
    SELECT sink, query FROM stagepost_sink_batch WHERE batch = -1 AND committed_at < :before
    ORDER BY committed_at LIMIT :limit FOR UPDATE SKIP LOCKED
)
