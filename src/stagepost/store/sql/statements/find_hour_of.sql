-- The first hour that was counted after the row came, by the kind of row. Index: the primary key.
SELECT
    (SELECT h.number FROM stagepost_housekeeping AS h WHERE h.line >= :line ORDER BY h.number LIMIT 1),
    (SELECT h.number FROM stagepost_housekeeping AS h WHERE h.letter >= :letter ORDER BY h.number LIMIT 1),
    (SELECT h.number FROM stagepost_housekeeping AS h WHERE h.replay >= :replay ORDER BY h.number LIMIT 1)
