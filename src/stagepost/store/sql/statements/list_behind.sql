-- As small as there are addresses. Index: the primary key.
SELECT address, broker, hour FROM stagepost_caught_up ORDER BY address, broker
