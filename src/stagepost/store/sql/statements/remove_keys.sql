-- The hour again: another purge may have removed the key, and a message may have brought it back. Index: the primary key.
DELETE FROM stagepost_business_key
WHERE stage = :stage AND key IN (SELECT k.value FROM unnest(:keys::text[]) AS k (value)) AND hour + 0 <= :hour
