CREATE TABLE IF NOT EXISTS stagepost_received (
    message_id   TEXT    PRIMARY KEY,
    digest       TEXT    NOT NULL,
    -- microseconds, UTC
    received_at  INTEGER NOT NULL,
    -- the answer to the first copy, which all later ones get
    status       INTEGER,
    content_type TEXT,
    answer       BLOB
) STRICT, WITHOUT ROWID
