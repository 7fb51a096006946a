-- A row that another open transaction has inserted is waited for. Index: the primary key.
INSERT INTO stagepost_decision (gid, is_commit, decided_at)
VALUES (:gid, :is_commit, :decided_at)
ON CONFLICT (gid) DO NOTHING
