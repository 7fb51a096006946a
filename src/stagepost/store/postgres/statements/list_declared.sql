-- Read in a sender's transaction. Index: the primary key.
SELECT stage FROM stagepost_declaration WHERE stage = ANY (:stages::text[]) AND dropped_at IS NULL
