-- Index: the primary key. Rows of transactions before :end are final, so ranges read at different times fit together.
SELECT id, waypoint, at, node, stage, message_id, flow_id, attempt, origin_at, cause_id, kind, ordinal, ms, bytes, detail
FROM stagepost_journal
WHERE id >= :low AND id < :high AND txid >= :begin AND txid < :end
