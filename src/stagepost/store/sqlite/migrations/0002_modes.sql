-- For stages whose queue is in another database. What they have handled is in the inbox, with what they produced until
-- that has reached the queue; what was started and has not reached it yet is in the outbox.

CREATE TABLE stagepost_inbox (
    stage        TEXT    NOT NULL,
    message_id   TEXT    NOT NULL,
    -- of the message's bytes: the same id with other content is a conflict
    digest       TEXT    NOT NULL,
    handled_at   INTEGER NOT NULL,
    -- until then only who handled it sends what it produced
    leased_until INTEGER NOT NULL,
    -- NULL once it has been sent
    produced     BLOB,
    is_sent      INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (stage, message_id)
) STRICT, WITHOUT ROWID;

-- Small, whatever the inbox holds.
CREATE INDEX stagepost_inbox_unsent ON stagepost_inbox (leased_until) WHERE NOT is_sent;

CREATE TABLE stagepost_outbox (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    next_at     INTEGER NOT NULL,
    attempts    INTEGER NOT NULL DEFAULT 0,
    scope       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    digest      TEXT    NOT NULL,
    run_id      TEXT,
    due_at      INTEGER,
    -- of what is published, for the subscribers that there are when it arrives
    topic       TEXT,
    node        TEXT    NOT NULL,
    held_at     INTEGER NOT NULL,
    envelope    BLOB    NOT NULL
) STRICT;

CREATE INDEX stagepost_outbox_next ON stagepost_outbox (next_at);
