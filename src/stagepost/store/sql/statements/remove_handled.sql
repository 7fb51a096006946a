-- The hour again, and the mark: another purge may have removed the row, and a copy of the message may have brought it back.
-- Index: the primary key.
DELETE FROM stagepost_inbox
WHERE stage = :stage AND message_id IN (SELECT k.value FROM unnest(:message_ids::text[]) AS k (value))
  AND hour + 0 <= :hour AND is_sent
