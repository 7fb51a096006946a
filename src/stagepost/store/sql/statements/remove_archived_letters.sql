-- The letters that an unfinished replay names stay. Index: the primary key.
DELETE FROM stagepost_dead_letter
WHERE id = ANY (:ids::bigint[]) AND NOT EXISTS (
    SELECT 1 FROM stagepost_replay AS r
    JOIN stagepost_replay_letter AS m ON m.replay = r.id AND m.letter = stagepost_dead_letter.id
)
RETURNING id, dead_at
