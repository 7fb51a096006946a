-- The letters that an unfinished replay names stay. Index: the primary key.
DELETE FROM stagepost_dead_letter
WHERE id IN (
    SELECT l.id FROM stagepost_dead_letter AS l
    WHERE l.id <= :last AND NOT EXISTS (
        SELECT 1 FROM stagepost_replay AS r
        JOIN stagepost_replay_letter AS m ON m.replay = r.id AND m.letter = l.id
    )
    ORDER BY l.id
    LIMIT :limit
)
RETURNING dead_at
