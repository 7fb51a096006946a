-- Of two archivers of one range one adds its manifest, by stagepost_manifest_first.
INSERT INTO stagepost_manifest (
    archive, kind, folder, first, next, row_count, seal, ends_at, written_at, has_gap, struck
)
VALUES (
    :archive, :kind, :folder, :first, :next, :rows, :seal, :end, :written_at, :has_gap, :struck
)
ON CONFLICT DO NOTHING
