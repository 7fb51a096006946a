-- Index: the primary key. No index has the column, so the row stays where it is.
UPDATE stagepost_incarnation SET beat = beat + 1 WHERE id = :id
