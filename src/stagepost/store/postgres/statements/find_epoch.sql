-- Index: the primary key, and that of pg_database's names. The lineage is another one where the tables came here with a
-- dump: to another server, database or table. The epoch is another one then, and where the server was promoted, or
-- recovered up to a moment: both begin a new timeline.
SELECT md5(concat_ws(' ', here.uuid, here.lineage, here.timeline))::uuid,
       here.lineage,
       (SELECT value FROM stagepost_meta WHERE key = 'lineage')
FROM (
    SELECT concat_ws(' ', server.system_identifier, d.oid, 'stagepost_journal'::regclass::oid) AS lineage,
           (SELECT value FROM stagepost_meta WHERE key = 'uuid') AS uuid,
           CASE WHEN pg_is_in_recovery()
                THEN (SELECT lpad(upper(to_hex(timeline_id)), 8, '0') FROM pg_control_checkpoint())
                ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END AS timeline
    FROM pg_control_system() AS server, pg_database AS d
    WHERE d.datname = current_database()
) AS here
