-- Index: the primary key. As much work as was done since, at the most.
SELECT EXISTS (
    SELECT 1 FROM stagepost_journal WHERE id >= :position AND waypoint IN ('committed', 'failed', 'died', 'dead')
)
