-- Index: the primary key.
UPDATE stagepost_business_key SET reply = :reply WHERE stage = :stage AND key = :key
