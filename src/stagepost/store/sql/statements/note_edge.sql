-- Index: the primary key.
INSERT INTO stagepost_edge (node, broker, state, since, reason, arrived, dispatched, seen_at)
VALUES (:node, :broker, :state, :since, :reason, :arrived, :dispatched, :seen_at)
ON CONFLICT (node) DO UPDATE SET
    broker = excluded.broker, state = excluded.state, since = excluded.since, reason = excluded.reason,
    arrived = excluded.arrived, dispatched = excluded.dispatched, seen_at = excluded.seen_at
