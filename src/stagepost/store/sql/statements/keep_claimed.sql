-- Index: the primary key, see take_claimed.
UPDATE stagepost_ready SET failures = :failures, deliveries = deliveries + 1
WHERE id = :id AND owner IS NOT DISTINCT FROM :owner AND deliveries = :deliveries AND message_id = :message_id
