-- The hour again: another purge may have removed the id, and a new message may have brought it back.
-- Index: the primary key.
DELETE FROM stagepost_accepted
WHERE scope = :scope AND key IN (SELECT k.value FROM unnest(:keys::text[]) AS k (value)) AND hour + 0 <= :hour
