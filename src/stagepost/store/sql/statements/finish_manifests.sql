-- Index: stagepost_manifest_deleting.
UPDATE stagepost_manifest SET state = 'done' WHERE state = 'deleting' AND next <= :until
