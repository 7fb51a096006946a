-- Index: the primary key.
SELECT a.scope, a.key, a.digest, a.run_id
FROM unnest(:scopes::text[], :keys::text[]) AS g (scope, key)
JOIN stagepost_accepted AS a ON a.scope = g.scope AND a.key = g.key
