-- Fewest deaths first, so that one deadly message does not keep the innocent waiting.
-- Index: stagepost_suspect_due.
SELECT id
FROM stagepost_suspect
WHERE stage IN (SELECT value FROM json_each(:stages)) AND due_at <= :now
ORDER BY deaths, due_at
LIMIT 1
