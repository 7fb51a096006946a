-- The outbox names ids whose messages have not reached the queue. Index: stagepost_accepted_hour.
SELECT a.hour, a.key, a.flow_id FROM stagepost_accepted AS a
WHERE a.scope = :scope AND a.hour <= :hour AND (a.hour, a.key) > (:after_hour, :after_key)
  AND a.key NOT IN (SELECT o.key FROM stagepost_outbox AS o WHERE o.scope = :scope)
ORDER BY a.hour, a.key
LIMIT :limit
