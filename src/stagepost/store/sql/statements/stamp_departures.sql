-- WHERE true: SQLite would take ON for the beginning of a join. Index: the primary key.
INSERT INTO stagepost_departure (stage, message_id, left_at)
SELECT :stage, s.value, :left_at FROM unnest(:ids::text[]) AS s (value) WHERE true
ON CONFLICT (stage, message_id) DO NOTHING
