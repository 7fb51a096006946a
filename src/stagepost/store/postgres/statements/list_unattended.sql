-- A locked message is being worked at, by an owner that only looks dead or stands still. The process that takes over does
-- not wait for it, but comes again. Index: stagepost_ready_owned.
SELECT id, owner, deliveries, stage, message_id, flow_id, failures, deaths, origin_at, envelope
FROM stagepost_ready
WHERE owner = :owner
ORDER BY id
FOR UPDATE SKIP LOCKED
