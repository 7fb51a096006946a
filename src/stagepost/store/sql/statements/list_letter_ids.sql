-- Index: stagepost_dead_letter_flow.
SELECT id FROM stagepost_dead_letter WHERE flow_id = ANY (:flows::text[])
