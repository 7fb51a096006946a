-- Index: the primary key. Only rows that the snapshot :seen sees, so ranges read at different times fit together. No
-- snapshot of this server sees the rows up to :restored, which came with a dump of another one.
SELECT id, waypoint, at, node, stage, message_id, flow_id, attempt, origin_at, cause_id, kind, ordinal, ms, bytes, detail
FROM stagepost_journal
WHERE id >= :low AND id < :high AND txid >= :begin AND txid < :end
  AND (txid < pg_snapshot_xmin(:seen::pg_snapshot)::text::bigint
       OR pg_visible_in_snapshot(txid::text::xid8, :seen::pg_snapshot)
       OR id <= :restored)
