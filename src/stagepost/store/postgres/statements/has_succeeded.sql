-- Index: stagepost_journal_committed.
SELECT EXISTS (SELECT 1 FROM stagepost_journal WHERE waypoint = 'committed' AND stage = :stage AND id > :line)
