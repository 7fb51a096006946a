-- Removes an incarnation that was taken for dead. One that has come back keeps its row, or no process would see it. A row
-- stays while its owner has messages left, because the messages that it ran must be known.
-- Index: stagepost_ready_owned.
DELETE FROM stagepost_incarnation AS i
WHERE i.id = :id
  AND NOT EXISTS (SELECT 1 FROM stagepost_ready AS r WHERE r.owner = i.owner)
  AND NOT EXISTS (SELECT 1 FROM pg_locks AS l
                  WHERE l.locktype = 'advisory' AND l.classid = :class::int AND l.objid = i.id AND l.objsubid = 2
                    AND l.granted
                    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))
