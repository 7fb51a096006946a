-- Reads all of it: it holds what is on its way.
SELECT count(*), min(held_at) FROM stagepost_outbox
