-- The hour again: another purge may have removed the id, and a new message may have brought it back. The scope comes by
-- row, so that the planner looks up each id. Index: the primary key.
DELETE FROM stagepost_accepted AS a
USING unnest(array_fill(:scope::text, ARRAY[cardinality(:keys::text[])]), :keys::text[]) AS k (scope, key)
WHERE a.scope = k.scope AND a.key = k.key AND a.hour + 0 <= :hour
