-- Sweepers leave locked attempts out. Index: the primary key.
SELECT token FROM stagepost_staged WHERE token = ANY (:tokens::text[]) ORDER BY token FOR UPDATE
