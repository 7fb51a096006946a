-- The flows of a range that have a line behind it. Once for each range that goes, so the planner may walk the lines behind it
-- where that is less than a look-up of each flow. Index: primary key of the journal, on both sides.
SELECT f.flow_id
FROM (SELECT DISTINCT flow_id FROM stagepost_journal WHERE id >= :first AND id < :next) AS f
WHERE EXISTS (SELECT 1 FROM stagepost_journal AS k WHERE k.flow_id = f.flow_id AND k.id >= :next)
