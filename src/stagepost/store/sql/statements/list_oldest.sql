-- Index: the primary keys, stagepost_run_hour, stagepost_audit_finding_hour.
SELECT (SELECT min(id) FROM stagepost_journal),
       (SELECT min(id) FROM stagepost_dead_letter),
       (SELECT min(id) FROM stagepost_replay),
       (SELECT min(hour) FROM stagepost_run),
       (SELECT min(hour) FROM stagepost_audit_finding)
