-- An incarnation that holds its lock lives. It runs the first of the messages that it holds, in the order in which it
-- claimed them, as many as it has slots. Of a batch none counts as running; as a second attempt each message runs alone.
-- Index: stagepost_ready_owned. The register itself is small: a row for each process that lives.
SELECT i.id, i.owner, i.node, i.host, i.process, i.started_at, i.beat,
       EXISTS (SELECT 1 FROM pg_locks AS l
               WHERE l.locktype = 'advisory' AND l.classid = :class::int AND l.objid = i.id AND l.objsubid = 2
                 AND l.granted
                 AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())),
       ARRAY (SELECT r.id || ' ' || r.deliveries FROM stagepost_ready AS r
              WHERE r.owner = i.owner
                AND (r.deliveries > 1 OR r.stage <> ALL (i.batched)
                     OR jsonb_exists(i.states, r.id || ' ' || r.deliveries))
              ORDER BY r.claimed_in, r.origin_at, r.id
              LIMIT i.slots),
       i.states::text
FROM stagepost_incarnation AS i
WHERE i.app = :app OR :app = '*'
ORDER BY i.id
