-- What is locked is being worked at, by an owner that only looks dead or stands still: whoever takes over does not wait
-- for him with all else, but comes again. Index: stagepost_ready_owned.
SELECT id, owner, deliveries, stage, message_id, flow_id, failures, deaths, origin_at, envelope
FROM stagepost_ready
WHERE owner = :owner
ORDER BY id
FOR UPDATE SKIP LOCKED
