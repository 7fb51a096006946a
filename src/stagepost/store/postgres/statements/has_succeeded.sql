-- Index: stagepost_journal_committed, whose predicate is written so that no other statement is planned with it.
SELECT EXISTS (SELECT 1 FROM stagepost_journal WHERE waypoint || '' = 'committed' AND stage = :stage AND id > :line)
