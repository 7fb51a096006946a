-- As bytes: a caller's or a handler's text_factory and converters may make anything of texts. Index: the primary key.
SELECT CAST(digest AS BLOB), CAST(run_id AS BLOB) FROM stagepost_accepted WHERE scope = :scope AND key = :key
