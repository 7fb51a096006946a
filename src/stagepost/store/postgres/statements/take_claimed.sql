-- The fence: the first statement of every stage transaction. Where the message is no longer this claim's it fails, and
-- with it whatever was sent along, the commit included: nobody need wait for its answer. Index: the primary key.
-- The message's own id is part of it: a claim need not survive a crash of the server, and neither do the numbers that it
-- gave to what had become due, which are then given to other messages.
-- Not owner = :owner: where its statistics are of an empty queue, the planner would look among all that the owner has had.
WITH taken AS (
    DELETE FROM stagepost_ready
    WHERE id = :id AND owner IS NOT DISTINCT FROM :owner AND deliveries = :deliveries AND message_id = :message_id
    RETURNING id
)
SELECT CASE WHEN EXISTS (SELECT FROM taken) THEN true ELSE stagepost_lease_lost() END
