-- The letters that an unfinished replay names stay. Index: the primary key.
SELECT l.id, l.message_id, l.flow_id, l.stage, l.reason, l.causes, l.stack, l.fingerprint, l.failures, l.deaths,
       l.deliveries, l.origin_at, l.dead_at, l.node, l.declared_at, l.envelope
FROM stagepost_dead_letter AS l
WHERE l.id > :after AND l.id <= :last AND NOT EXISTS (
    SELECT 1 FROM stagepost_replay AS r
    JOIN stagepost_replay_letter AS m ON m.replay = r.id AND m.letter = l.id
)
ORDER BY l.id
LIMIT :limit
