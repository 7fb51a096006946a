-- Waits for a transaction that is just ending with it: ours, perhaps, whose answer was lost. Index: the primary key, see
-- take_claimed.
SELECT 1 FROM stagepost_ready WHERE id = :id AND owner IS NOT DISTINCT FROM :owner AND deliveries = :deliveries
      AND message_id = :message_id
FOR UPDATE
