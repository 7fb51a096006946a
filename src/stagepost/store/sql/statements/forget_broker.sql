-- As small as there are addresses.
DELETE FROM stagepost_caught_up WHERE broker = :broker
