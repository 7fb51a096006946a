-- No table. The message, which is only in the log, makes this a transaction with a number, whose commit waits for the
-- disk: all numbers below the position are on the disk with it, and none of them is given out again after a crash. A
-- standby writes nothing, and has only what is on the disk of its primary.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
       CASE WHEN NOT pg_is_in_recovery() THEN pg_logical_emit_message(true, 'stagepost', 'position') END
