-- Of rows with one key, the one with the least digest wins: SQLite takes the other columns from the row of the minimum.
-- Index: the primary keys.
INSERT INTO stagepost_ready (stage, message_id, flow_id, failures, deaths, deliveries, origin_at, envelope)
SELECT :stage, message_id, flow_id, 0, 0, 0, origin_at, envelope
FROM (
    SELECT message_id, flow_id, origin_at, envelope, min(digest)
    FROM stagepost_staged_row
    WHERE token IN (SELECT value FROM json_each(:tokens)) AND reason IS NULL
        AND NOT EXISTS (SELECT 1 FROM stagepost_accepted WHERE scope = :scope AND key = message_id)
    GROUP BY message_id
)
