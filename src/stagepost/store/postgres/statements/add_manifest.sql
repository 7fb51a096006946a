-- Of two archivers of one range one adds its manifest, by stagepost_manifest_first. The lock comes before the id and goes
-- with the commit, so no reader sees a manifest after one with a higher id. The number is ours by chance.
WITH turn AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(2946188353)
)
INSERT INTO stagepost_manifest (
    archive, kind, folder, first, next, row_count, seal, ends_at, written_at, has_gap, struck
)
SELECT :archive, :kind, :folder, :first, :next, :rows, :seal, :end, :written_at, :has_gap, :struck
FROM turn
ON CONFLICT DO NOTHING
