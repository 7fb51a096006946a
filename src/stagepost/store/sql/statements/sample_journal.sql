-- Index: the primary key, for each point. The ids near a point tell how dense they are there.
SELECT p.value,
       (SELECT j.id FROM stagepost_journal AS j WHERE j.id < p.value ORDER BY j.id DESC LIMIT 1),
       (SELECT j.id FROM stagepost_journal AS j WHERE j.id >= p.value ORDER BY j.id LIMIT 1),
       (SELECT j.id FROM stagepost_journal AS j WHERE j.id >= p.value ORDER BY j.id LIMIT 1 OFFSET 63)
FROM unnest(:points::bigint[]) AS p (value)
