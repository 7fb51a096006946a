CREATE TABLE IF NOT EXISTS stagepost_received (
    message_id   text COLLATE "C" PRIMARY KEY,
    digest       text   NOT NULL,
    -- microseconds, UTC
    received_at  bigint NOT NULL,
    -- the answer to the first copy, which all later ones get
    status       integer,
    content_type text,
    answer       bytea
)
