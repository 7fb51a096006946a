-- Index: the primary key.
SELECT row_count, digest FROM stagepost_sink_batch WHERE sink = :sink AND query = :query AND batch = :batch
