-- Index: the primary key.
INSERT INTO stagepost_cursor (reader, epoch, first, position, used_at, hour)
VALUES (:reader, :epoch, :first, :first, :used_at,
        (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping))
ON CONFLICT (reader) DO NOTHING
