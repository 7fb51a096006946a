-- Index: stagepost_ready_owned.
SELECT owner, count(*) FROM stagepost_ready WHERE owner IS NOT NULL GROUP BY owner ORDER BY owner
