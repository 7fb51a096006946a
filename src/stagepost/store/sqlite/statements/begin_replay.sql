INSERT INTO stagepost_replay (who, asked_at, selection, rate, letters, replayed, gone)
VALUES (?, ?, ?, ?, 0, 0, 0)
RETURNING id
