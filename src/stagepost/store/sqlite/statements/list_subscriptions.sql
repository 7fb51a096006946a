-- Index: the primary key.
SELECT topic, subscriber, app FROM stagepost_subscription WHERE topic IN (SELECT value FROM json_each(:topics))
