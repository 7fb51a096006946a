-- A replay with letters that are left stays: it can be resumed. Index: the primary key.
DELETE FROM stagepost_replay
WHERE id IN (
    SELECT r.id FROM stagepost_replay AS r
    WHERE r.id <= :last AND NOT EXISTS (SELECT 1 FROM stagepost_replay_letter AS m WHERE m.replay = r.id)
    ORDER BY r.id
    LIMIT :limit
)
