-- Index: the primary key. An open transaction that enters the same key is waited for.
INSERT INTO stagepost_sink_batch (sink, query, batch, row_count, digest, committed_at)
VALUES (:sink, :query, :batch, :row_count, :digest, :now)
ON CONFLICT (sink, query, batch) DO NOTHING
