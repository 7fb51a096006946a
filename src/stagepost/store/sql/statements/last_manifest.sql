-- Index: stagepost_manifest_first.
SELECT archive, kind, folder, first, next, row_count, seal, ends_at, written_at, has_gap, struck, id
FROM stagepost_manifest
WHERE kind = 'journal'
ORDER BY first DESC
LIMIT 1
