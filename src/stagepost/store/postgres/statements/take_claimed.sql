-- The fence: the first statement of every stage transaction. Index: the primary key.
-- The message's own id is part of it: a claim need not survive a crash of the server, and neither do the numbers that it
-- gave to what had become due, which are then given to other messages.
DELETE FROM stagepost_ready WHERE id = :id AND owner = :owner AND deliveries = :deliveries AND message_id = :message_id
