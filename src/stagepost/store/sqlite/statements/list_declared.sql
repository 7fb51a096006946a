-- As bytes: a caller's or a handler's text_factory and converters may make anything of texts. Index: the primary key.
SELECT CAST(stage AS BLOB)
FROM stagepost_declaration
WHERE stage IN (SELECT value FROM json_each(:stages)) AND dropped_at IS NULL
