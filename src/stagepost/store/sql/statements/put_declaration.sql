-- Index: the primary key.
INSERT INTO stagepost_declaration (stage, endpoint, app, dropped_at, types)
VALUES (:stage, :endpoint, :app, :dropped_at, :types)
ON CONFLICT (stage) DO UPDATE
SET endpoint = excluded.endpoint, app = excluded.app, dropped_at = excluded.dropped_at, types = excluded.types
