-- What another one takes who works off the same replay is left to it. Index: the primary key, which begins with the
-- replay. From :after on, or each chunk would walk over what those before it have left in the index, dead.
WITH taken AS MATERIALIZED (
    SELECT letter FROM stagepost_replay_letter
    WHERE replay = :replay AND letter > :after
    ORDER BY letter
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
DELETE FROM stagepost_replay_letter
WHERE replay = :replay AND letter = ANY (ARRAY (SELECT letter FROM taken))
RETURNING letter
