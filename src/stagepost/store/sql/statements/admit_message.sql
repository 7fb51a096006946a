-- A copy of the message that is being handled elsewhere is waited for, for a while. Index: the primary key.
INSERT INTO stagepost_inbox (stage, message_id, digest, handled_at, leased_until, hour)
VALUES (:stage, :message_id, :digest, :handled_at, :leased_until,
        (SELECT coalesce(max(number), 0) FROM stagepost_housekeeping))
ON CONFLICT (stage, message_id) DO NOTHING
