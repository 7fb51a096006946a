-- Index: the primary key.
DELETE FROM stagepost_staged_row WHERE token = ANY (:tokens::text[])
