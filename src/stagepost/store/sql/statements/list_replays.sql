-- Index: the primary key.
SELECT id, who, asked_at, selection, rate, letters, replayed, gone FROM stagepost_replay ORDER BY id
