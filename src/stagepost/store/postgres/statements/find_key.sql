-- Index: the primary key.
SELECT message_id, digest, reply FROM stagepost_business_key WHERE stage = :stage AND key = :key
