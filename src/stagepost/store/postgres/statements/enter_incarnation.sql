INSERT INTO stagepost_incarnation (id, app, owner, node, host, process, slots, started_at, batched, beat)
OVERRIDING SYSTEM VALUE
VALUES (:id, :app, :owner, :node, :host, :process, :slots, :started_at, :batched, 0)
ON CONFLICT (id) DO NOTHING
