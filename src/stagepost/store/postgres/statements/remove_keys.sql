-- The hour again: another purge may have removed the key, and a message may have brought it back. The stage comes by row,
-- so that the planner looks up each key. Index: the primary key.
DELETE FROM stagepost_business_key AS b
USING unnest(array_fill(:stage::text, ARRAY[cardinality(:keys::text[])]), :keys::text[]) AS k (stage, key)
WHERE b.stage = k.stage AND b.key = k.key AND b.hour + 0 <= :hour
