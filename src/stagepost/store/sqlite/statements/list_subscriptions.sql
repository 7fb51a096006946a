-- As bytes: a caller's or a handler's text_factory and converters may make anything of texts. Index: the primary key.
SELECT CAST(topic AS BLOB), CAST(subscriber AS BLOB), CAST(app AS BLOB)
FROM stagepost_subscription
WHERE topic IN (SELECT value FROM json_each(:topics))
