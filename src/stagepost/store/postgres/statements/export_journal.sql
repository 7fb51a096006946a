-- Index: the primary key. Only rows that the snapshot :seen sees, so ranges read at different times fit together. The
-- rows up to :restored came with a dump: they have the numbers of another server's transactions, and are before all
-- positions of this one. The oldest transaction of the snapshot is a subquery, so that it is computed once.
SELECT id, waypoint, at, node, stage, message_id, flow_id, attempt, origin_at, cause_id, kind, ordinal, ms, bytes, detail
FROM stagepost_journal
WHERE id >= :low::bigint AND id < :high::bigint
  AND CASE WHEN id <= :restored::bigint THEN :begin::bigint = 0 AND :end::bigint > 0
           ELSE txid >= :begin::bigint AND txid < :end::bigint
                AND (txid < (SELECT pg_snapshot_xmin(:seen::pg_snapshot)::text::bigint)
                     OR pg_visible_in_snapshot(txid::text::xid8, :seen::pg_snapshot)) END
