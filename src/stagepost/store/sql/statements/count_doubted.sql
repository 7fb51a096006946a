-- Index: stagepost_effect_doubted.
SELECT count(*) FROM stagepost_effect WHERE ending = 'doubted'
