INSERT INTO stagepost_subscription (topic, subscriber, app)
VALUES (?, ?, ?)
ON CONFLICT (topic, subscriber) DO UPDATE SET app = excluded.app
