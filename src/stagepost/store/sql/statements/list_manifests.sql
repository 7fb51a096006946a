-- Index: the primary key.
SELECT archive, kind, folder, first, next, row_count, seal, ends_at, written_at, has_gap, struck, id
FROM stagepost_manifest
WHERE id > :after
ORDER BY id
