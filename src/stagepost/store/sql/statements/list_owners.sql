-- A skip scan over the index: as many steps as there are owners, however much each of them holds.
-- Index: stagepost_ready_owned.
WITH RECURSIVE owners (owner) AS (
    SELECT min(owner) FROM stagepost_ready WHERE owner IS NOT NULL
    UNION ALL
    SELECT (SELECT min(r.owner) FROM stagepost_ready AS r WHERE r.owner IS NOT NULL AND r.owner > owners.owner)
    FROM owners
    WHERE owners.owner IS NOT NULL
)
SELECT owner FROM owners WHERE owner IS NOT NULL
