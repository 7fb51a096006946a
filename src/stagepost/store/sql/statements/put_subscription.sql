INSERT INTO stagepost_subscription (topic, subscriber, app)
VALUES (:topic, :subscriber, :app)
ON CONFLICT (topic, subscriber) DO UPDATE SET app = excluded.app
