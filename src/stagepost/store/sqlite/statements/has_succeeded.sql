-- Among the journal's latest lines. Index: the primary key.
SELECT EXISTS (
    SELECT 1 FROM stagepost_journal
    WHERE id > max(:line, (SELECT coalesce(max(id), 0) FROM stagepost_journal) - :lines)
      AND stage = :stage AND waypoint = 'committed'
)
