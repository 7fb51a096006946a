-- The file of the commits that cannot wait for the transaction of a stage. It is never attached to the other file.

CREATE TABLE stagepost_meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The calls to the outside that cannot join a stage's transaction. token is the highest that may call for a message.
CREATE TABLE stagepost_effect_token (
    message_id TEXT    NOT NULL,
    stage      TEXT    NOT NULL,
    token      INTEGER NOT NULL,
    -- in the order of the first tokens
    id         INTEGER PRIMARY KEY,
    UNIQUE (message_id, stage)
) STRICT;

CREATE TABLE stagepost_effect (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id    TEXT    NOT NULL,
    stage         TEXT    NOT NULL,
    message_index INTEGER NOT NULL,
    -- empty for the stage's own handler
    handler       TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    ordinal       INTEGER NOT NULL,
    -- one more with each undo
    generation    INTEGER NOT NULL,
    flow_id       TEXT    NOT NULL,
    -- The same effect with another request is a conflict.
    digest        TEXT    NOT NULL,
    request       BLOB    NOT NULL,
    -- NULL: unknown
    result        BLOB,
    -- undone or doubted: the end of an effect that no commit kept
    ending        TEXT
) STRICT;

CREATE UNIQUE INDEX stagepost_effect_key
    ON stagepost_effect (message_id, stage, message_index, handler, name, ordinal, generation);
CREATE INDEX stagepost_effect_flow ON stagepost_effect (flow_id);
-- As small as there are calls without an answer.
CREATE INDEX stagepost_effect_unknown ON stagepost_effect (id) WHERE result IS NULL AND ending IS NULL;
CREATE INDEX stagepost_effect_doubted ON stagepost_effect (id) WHERE ending = 'doubted';

-- A line for each call, written before the call begins.
CREATE TABLE stagepost_effect_intent (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    effect       INTEGER NOT NULL,
    token        INTEGER NOT NULL,
    owner        TEXT    NOT NULL,
    node         TEXT    NOT NULL,
    at           INTEGER NOT NULL,
    -- an earlier call may have done the same
    is_repeat    INTEGER NOT NULL,
    -- the attempt that called has ended
    is_over      INTEGER NOT NULL DEFAULT 0,
    -- the call did nothing
    is_withdrawn INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX stagepost_effect_intent_effect ON stagepost_effect_intent (effect, id);
CREATE INDEX stagepost_effect_intent_repeat ON stagepost_effect_intent (id) WHERE is_repeat;

-- The flows that stages started independently of their transactions, until the first file has accepted them.
CREATE TABLE stagepost_outbox (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    next_at     INTEGER NOT NULL,
    attempts    INTEGER NOT NULL DEFAULT 0,
    scope       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    digest      TEXT    NOT NULL,
    run_id      TEXT,
    due_at      INTEGER,
    topic       TEXT,
    node        TEXT    NOT NULL,
    held_at     INTEGER NOT NULL,
    envelope    BLOB    NOT NULL
) STRICT;

CREATE INDEX stagepost_outbox_next ON stagepost_outbox (next_at);
CREATE INDEX stagepost_outbox_key ON stagepost_outbox (scope, key);
