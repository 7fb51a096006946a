-- Another statement puts these messages into ready. Index: stagepost_delayed_due.
DELETE FROM stagepost_delayed
WHERE id IN (
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
)
RETURNING due_at, id, stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope
