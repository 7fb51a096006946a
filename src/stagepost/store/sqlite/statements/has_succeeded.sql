-- Index: stagepost_journal_committed; left to itself, SQLite reads all lines since, by the primary key.
SELECT EXISTS (
    SELECT 1 FROM stagepost_journal INDEXED BY stagepost_journal_committed
    WHERE waypoint = 'committed' AND stage = :stage AND id > :line
)
