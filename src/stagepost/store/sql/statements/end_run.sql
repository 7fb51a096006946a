-- Index: the primary key. The counts of an earlier start went when a later one ended.
UPDATE stagepost_run SET rows_in = :rows_in, ended_at = :now, ended_start = :start,
    hour = (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping)
WHERE id = :id AND (ended_start IS NULL OR ended_start <= :start)
