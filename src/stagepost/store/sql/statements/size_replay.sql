-- Index: the primary key.
UPDATE stagepost_replay SET letters = :letters WHERE id = :replay
