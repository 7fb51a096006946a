-- The workers that handled them should have marked them by now. Index: stagepost_inbox_unsent.
SELECT stage, message_id FROM stagepost_inbox
WHERE NOT is_sent AND leased_until <= :now
ORDER BY leased_until
LIMIT :limit
