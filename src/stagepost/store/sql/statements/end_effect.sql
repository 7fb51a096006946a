-- Index: the primary key.
UPDATE stagepost_effect SET ending = :ending WHERE id = :id
