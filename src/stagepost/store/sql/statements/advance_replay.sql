-- Index: the primary key.
UPDATE stagepost_replay SET replayed = replayed + :replayed, gone = gone + :gone WHERE id = :replay
