-- As small as there are consumers.
DELETE FROM stagepost_consumer WHERE broker = :broker
