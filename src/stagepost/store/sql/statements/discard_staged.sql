-- Index: the primary key.
DELETE FROM stagepost_staged WHERE token = ANY (:tokens::text[])
