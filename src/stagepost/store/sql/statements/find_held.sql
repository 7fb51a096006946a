-- Index: stagepost_outbox_key.
SELECT digest, run_id FROM stagepost_outbox WHERE scope = :scope AND key = :key LIMIT 1
