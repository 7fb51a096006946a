-- Index: stagepost_inbox_hour.
SELECT min(hour) FROM stagepost_inbox WHERE is_sent AND stage = :stage
