-- Index: the primary key.
UPDATE stagepost_sink_batch SET row_count = :row_count, digest = :digest, committed_at = :now
WHERE sink = :sink AND query = :query AND batch = :batch
