-- The number of outbound rows, counted no further than :most. Index: stagepost_ready_claimable, stagepost_ready_owned,
-- stagepost_delayed_due.
SELECT count(*)
FROM (
    SELECT 1 FROM stagepost_ready WHERE owner IS NULL AND stage >= :first AND stage < :behind
    UNION ALL
    SELECT 1 FROM stagepost_ready WHERE owner IS NOT NULL AND stage >= :first AND stage < :behind
    UNION ALL
    SELECT 1 FROM stagepost_delayed WHERE stage >= :first AND stage < :behind
    LIMIT :most
) AS outbound
