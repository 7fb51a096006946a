-- Index: stagepost_business_key_hour.
SELECT b.hour, b.key, b.message_id FROM stagepost_business_key AS b
WHERE b.stage = :stage AND b.hour <= :hour AND (b.hour, b.key) > (:after_hour, :after_key)
ORDER BY b.hour, b.key
LIMIT :limit
