-- Index: the primary key.
DELETE FROM stagepost_subscription WHERE topic = :topic AND subscriber = :subscriber
