-- Index: the primary key.
INSERT INTO stagepost_retention (scope, app, hours) VALUES (:scope, :app, :hours)
ON CONFLICT (scope, app) DO UPDATE SET hours = excluded.hours
