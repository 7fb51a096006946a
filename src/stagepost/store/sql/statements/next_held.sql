-- Index: stagepost_outbox_next.
SELECT min(next_at) FROM stagepost_outbox
