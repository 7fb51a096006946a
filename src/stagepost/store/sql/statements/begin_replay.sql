INSERT INTO stagepost_replay (who, asked_at, selection, rate, letters, replayed, gone)
VALUES (:who, :asked_at, :selection, :rate, 0, 0, 0)
RETURNING id
