-- Both tables are as small as there are consumers. An address without a living one stays.
SELECT c.address, count(k.consumer)
FROM stagepost_caught_up AS c
LEFT JOIN stagepost_consumer AS k ON k.address = c.address AND k.broker = c.broker
GROUP BY c.address
