-- The table is as small as there are consumers.
SELECT address, count(*) FROM stagepost_consumer GROUP BY address
