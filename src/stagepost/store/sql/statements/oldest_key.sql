-- Index: stagepost_business_key_hour.
SELECT min(hour) FROM stagepost_business_key WHERE stage = :stage
