-- Index: stagepost_staged_batch.
SELECT token FROM stagepost_staged WHERE sink = :sink AND query = :query AND batch <= :batch FOR UPDATE SKIP LOCKED
