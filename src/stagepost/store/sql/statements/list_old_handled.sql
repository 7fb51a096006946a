-- Index: stagepost_inbox_hour.
SELECT i.hour, i.message_id FROM stagepost_inbox AS i
WHERE i.is_sent AND i.stage = :stage AND i.hour <= :hour AND (i.hour, i.message_id) > (:after_hour, :after_id)
ORDER BY i.hour, i.message_id
LIMIT :limit
