-- Index: stagepost_inbox_unsent.
SELECT count(*), min(handled_at) FROM stagepost_inbox WHERE NOT is_sent
