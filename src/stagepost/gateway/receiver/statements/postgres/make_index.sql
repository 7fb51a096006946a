CREATE INDEX IF NOT EXISTS stagepost_received_at ON stagepost_received (received_at)
