-- The open flows that have a line in a range: see list_open_flows.sql. A range has millions of flows. Far fewer rows are
-- open, so the range is asked for their flows, and not the other way round. Index: primary key of the journal.
SELECT o.flow_id
FROM (
    SELECT flow_id FROM stagepost_dead_letter
    UNION SELECT flow_id FROM stagepost_delayed
    UNION SELECT flow_id FROM stagepost_suspect
    UNION SELECT flow_id FROM stagepost_ready
) AS o
WHERE EXISTS (SELECT 1 FROM stagepost_journal AS j WHERE j.flow_id = o.flow_id AND j.id >= :first AND j.id < :next)
