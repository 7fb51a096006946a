-- Index: the primary key.
DELETE FROM stagepost_subscription WHERE topic = ? AND subscriber = ?
