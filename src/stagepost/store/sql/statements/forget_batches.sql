-- Index: the primary key.
DELETE FROM stagepost_sink_batch WHERE sink = :sink AND query = :query AND batch <= :batch
