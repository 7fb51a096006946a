-- The lock on the row keeps sweepers away until the new rows are committed. Index: the primary key.
UPDATE stagepost_staged SET chunks = chunks + 1 WHERE token = :token
