-- Letters that another process takes off the same replay are skipped. Index: the primary key, which begins with the
-- replay. From :after on, or each chunk would walk over the dead entries of those before it.
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
