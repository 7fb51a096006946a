-- Index: the primary keys.
INSERT INTO stagepost_quarantine (run_id, file, record, reason, flow_id, row)
SELECT :run_id, s.address, row_number() OVER (PARTITION BY s.address ORDER BY s.token, s.place),
    coalesce(s.reason, 'id-conflict: this content has the digest ' || substr(s.digest, 1, 16) || '…, but ' || :scope
        || ' accepted the same id before with ' || substr(a.digest, 1, 16) || '…'),
    s.flow_id, s.row
FROM stagepost_staged_row AS s
LEFT JOIN stagepost_accepted AS a ON a.scope = :scope AND a.key = s.message_id
WHERE s.token = ANY (:tokens::text[]) AND (s.reason IS NOT NULL OR a.digest <> s.digest)
ON CONFLICT (run_id, file, record) DO NOTHING
