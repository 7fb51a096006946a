-- All rows, the keys that the run started, the rows whose content was accepted, and those that are quarantined.
-- Index: the primary keys.
SELECT count(*),
    count(DISTINCT CASE WHEN a.run_id = :run_id AND a.digest = s.digest THEN s.message_id END),
    count(CASE WHEN a.digest = s.digest THEN 1 END),
    count(CASE WHEN s.reason IS NOT NULL OR a.digest <> s.digest THEN 1 END)
FROM stagepost_staged_row AS s
LEFT JOIN stagepost_accepted AS a ON a.scope = :scope AND a.key = s.message_id
WHERE s.token = ANY (:tokens::text[])
