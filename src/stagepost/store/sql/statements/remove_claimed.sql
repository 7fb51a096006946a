-- The same fence, for those who ask whether it held. Index: the primary key, see take_claimed.
DELETE FROM stagepost_ready
WHERE id = :id AND owner IS NOT DISTINCT FROM :owner AND deliveries = :deliveries AND message_id = :message_id
