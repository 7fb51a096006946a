-- The planner's estimate, of the last analysis. Index: those of the catalogue.
SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = to_regclass('stagepost_journal_' || :first::bigint)
