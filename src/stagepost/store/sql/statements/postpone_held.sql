-- Index: the primary key.
UPDATE stagepost_outbox SET next_at = :next_at, attempts = :attempts WHERE id = :id
