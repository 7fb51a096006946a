-- The fence of a batch, as take_claimed is of one message: all of them, or nothing of what is sent along. Index: the
-- primary key, which the ids are said twice for.
WITH taken AS (
    DELETE FROM stagepost_ready
    WHERE id = ANY (:ids::bigint[])
      AND (id, owner, deliveries, message_id) IN (
          SELECT * FROM unnest(:ids::bigint[], :owners::text[], :deliveries::int[], :message_ids::text[])
      )
    RETURNING id
)
SELECT CASE WHEN (SELECT count(*) FROM taken) = cardinality(:ids::bigint[]) THEN true ELSE stagepost_lease_lost() END
