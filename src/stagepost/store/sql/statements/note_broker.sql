-- Index: the primary key.
INSERT INTO stagepost_caught_up (address, broker, hour) VALUES (:address, :broker, -1) ON CONFLICT (address, broker) DO NOTHING
