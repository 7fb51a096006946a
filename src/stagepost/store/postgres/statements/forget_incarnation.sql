-- Somebody else's, who was taken for dead: not where he has come back meanwhile, for he would live on and be seen by
-- nobody; and not for as long as something is left of what he held, for what he was doing must be known.
-- Index: stagepost_ready_owned.
DELETE FROM stagepost_incarnation AS i
WHERE i.id = :id
  AND NOT EXISTS (SELECT 1 FROM stagepost_ready AS r WHERE r.owner = i.owner)
  AND NOT EXISTS (SELECT 1 FROM pg_locks AS l
                  WHERE l.locktype = 'advisory' AND l.classid = :class::int AND l.objid = i.id AND l.objsubid = 2
                    AND l.granted
                    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))
