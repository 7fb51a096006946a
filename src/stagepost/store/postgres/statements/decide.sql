-- By the server's clock: those of the coordinators differ. A row that another open transaction has inserted is waited
-- for. Index: the primary key.
INSERT INTO stagepost_decision (gid, is_commit, decided_at)
VALUES (:gid, :is_commit, extract(epoch FROM clock_timestamp()) * 1000000)
ON CONFLICT (gid) DO NOTHING
