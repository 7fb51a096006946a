-- Index: the primary key, which begins with the replay.
DELETE FROM stagepost_replay_letter
WHERE replay = :replay AND letter IN (
    SELECT letter FROM stagepost_replay_letter
    WHERE replay = :replay AND letter > :after
    ORDER BY letter
    LIMIT :limit
)
RETURNING letter
