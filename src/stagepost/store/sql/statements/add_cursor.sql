-- Index: the primary key.
INSERT INTO stagepost_cursor (reader, epoch, first, position, used_at)
VALUES (:reader, :epoch, :first, :first, :used_at)
ON CONFLICT (reader) DO NOTHING
