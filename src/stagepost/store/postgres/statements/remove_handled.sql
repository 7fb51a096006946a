-- The hour again, and the mark: another purge may have removed the row, and a copy of the message may have brought it back.
-- The stage comes by row, so that the planner looks up each row. Index: the primary key.
DELETE FROM stagepost_inbox AS i
USING unnest(array_fill(:stage::text, ARRAY[cardinality(:message_ids::text[])]), :message_ids::text[])
    AS k (stage, message_id)
WHERE i.stage = k.stage AND i.message_id = k.message_id AND i.hour + 0 <= :hour AND i.is_sent
