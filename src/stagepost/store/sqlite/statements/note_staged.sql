-- The lines of the messages that put_staged puts, from the same rows. Index: the primary keys.
INSERT INTO stagepost_journal (waypoint, at, node, stage, message_id, flow_id, attempt, origin_at, cause_id, kind,
                               ordinal, ms, bytes, detail)
SELECT 'accepted', :now, :node, :stage, message_id, flow_id, 0, origin_at, NULL, :kind, 0, NULL, bytes, :run_id
FROM (
    SELECT message_id, flow_id, origin_at, length(envelope) AS bytes, min(digest)
    FROM stagepost_staged_row
    WHERE token IN (SELECT value FROM json_each(:tokens)) AND reason IS NULL
        AND NOT EXISTS (SELECT 1 FROM stagepost_accepted WHERE scope = :scope AND key = message_id)
    GROUP BY message_id
)
