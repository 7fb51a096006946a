INSERT INTO stagepost_staged (token, sink, query, batch, staged_at) VALUES (:token, :sink, :query, :batch, :now)
