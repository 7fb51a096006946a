-- The outbox names ids whose messages have not reached the queue. Index: stagepost_accepted_hour, stagepost_outbox_key.
SELECT a.hour, a.key, a.flow_id FROM stagepost_accepted AS a
WHERE a.scope = :scope AND a.hour <= :hour AND (a.hour, a.key) > (:after_hour, :after_key)
  AND NOT EXISTS (SELECT 1 FROM stagepost_outbox AS o WHERE o.scope = a.scope AND o.key = a.key)
ORDER BY a.hour, a.key
LIMIT :limit
