-- As bytes: a handler's text_factory may make anything of texts. Index: the primary key.
SELECT CAST(message_id AS BLOB), CAST(digest AS BLOB), reply
FROM stagepost_business_key
WHERE stage = :stage AND key = :key
