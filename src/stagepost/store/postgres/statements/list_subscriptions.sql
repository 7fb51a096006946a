-- Index: the primary key.
SELECT topic, subscriber, app FROM stagepost_subscription WHERE topic = ANY (:topics::text[])
