-- Index: the primary key. Only rows that the snapshot :seen sees, so ranges read at different times fit together. The
-- rows up to :restored came with a dump: they have the numbers of another server's transactions, and are before all
-- positions of this one.
SELECT id, waypoint, at, node, stage, message_id, flow_id, attempt, origin_at, cause_id, kind, ordinal, ms, bytes, detail
FROM stagepost_journal
WHERE id >= :low AND id < :high
  AND CASE WHEN id <= :restored THEN :begin = 0 AND :end > 0
           ELSE txid >= :begin AND txid < :end
                AND (txid < pg_snapshot_xmin(:seen::pg_snapshot)::text::bigint
                     OR pg_visible_in_snapshot(txid::text::xid8, :seen::pg_snapshot)) END
