-- The fence: the first statement of every stage transaction. Where the message is no longer this claim's it fails, and
-- with it whatever was sent along, the commit included: nobody need wait for its answer. Index: the primary key.
WITH taken AS (
    DELETE FROM stagepost_ready WHERE id = :id AND owner = :owner AND deliveries = :deliveries RETURNING id
)
SELECT CASE WHEN EXISTS (SELECT FROM taken) THEN true ELSE stagepost_lease_lost() END
