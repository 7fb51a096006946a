-- Of two archivers of one range one adds its manifest, by stagepost_manifest_first.
INSERT INTO stagepost_manifest (
    archive, kind, folder, first, next, row_count, seal, ends_at, written_at, has_gap, struck, state
)
VALUES (
    :archive, :kind, :folder, :first, :next, :rows, :seal, :end, :written_at, :has_gap, :struck, :state
)
ON CONFLICT DO NOTHING
