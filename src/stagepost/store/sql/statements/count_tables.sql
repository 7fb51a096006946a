-- The tables that no age clears. Each is as small as its comment in the schema says, and is counted up to a limit.
SELECT
    (SELECT count(*) FROM stagepost_subscription),
    (SELECT count(*) FROM stagepost_circuit),
    (SELECT count(*) FROM (SELECT 1 FROM stagepost_departure LIMIT :limit) AS d),
    (SELECT count(*) FROM stagepost_caught_up),
    (SELECT count(*) FROM stagepost_cursor) + (SELECT count(*) FROM stagepost_audit_state),
    (SELECT count(*) FROM stagepost_declaration),
    (SELECT count(*) FROM (SELECT 1 FROM stagepost_sink_batch LIMIT :limit) AS b),
    (SELECT count(*) FROM (SELECT 1 FROM stagepost_staged LIMIT :limit) AS s),
    (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping),
    (SELECT count(*) FROM (SELECT 1 FROM stagepost_manifest LIMIT :limit) AS m)
