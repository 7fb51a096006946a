-- What stands between these stages and "drained". Index: the partial ones of ready, and those by stage of the others.
SELECT
    EXISTS (SELECT 1 FROM json_each(:stages) AS s
            WHERE EXISTS (SELECT 1 FROM stagepost_ready WHERE owner IS NULL AND stage = s.value)),
    EXISTS (SELECT 1 FROM stagepost_ready
            WHERE owner IS NOT NULL AND stage IN (SELECT value FROM json_each(:stages))),
    (SELECT min(first_due) FROM (
        SELECT (SELECT min(due_at) FROM stagepost_delayed WHERE stage = s.value) AS first_due
        FROM json_each(:stages) AS s)),
    (SELECT min(due_at) FROM stagepost_suspect WHERE stage IN (SELECT value FROM json_each(:stages)))
