-- Index: stagepost_delayed_due.
SELECT d.id
FROM json_each(:stages) AS s
JOIN stagepost_delayed AS d ON d.id IN (
    SELECT q.id FROM stagepost_delayed AS q
    WHERE q.stage = s.value AND q.due_at <= :now
    ORDER BY q.due_at
    LIMIT :limit
)
ORDER BY d.due_at
LIMIT :limit
