-- The lock ends with the transaction. It tells at once that another copy is at work; an INSERT would wait for it.
SELECT pg_try_advisory_xact_lock(hashtextextended('stagepost_received ' || %(message_id)s, 0))
