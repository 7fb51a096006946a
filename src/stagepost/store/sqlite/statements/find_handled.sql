-- As bytes: a handler's text_factory may make anything of texts. Index: the primary key.
SELECT CAST(digest AS BLOB), produced FROM stagepost_inbox WHERE stage = :stage AND message_id = :message_id
