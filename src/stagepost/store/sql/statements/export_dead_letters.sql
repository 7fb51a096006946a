-- One statement, so one moment: a letter that comes back moves to the end of the table.
SELECT id, message_id, flow_id, stage, reason, causes, stack, fingerprint, failures, deaths, deliveries, origin_at,
       dead_at, node, declared_at, envelope
FROM stagepost_dead_letter
