-- The example's own tables, in the same file as Stagepost's. So one commit covers both.
--
-- The ledger is append-only and has no unique key on purpose. No constraint hides a repeated posting, so the sums and
-- the counts show it.

CREATE TABLE IF NOT EXISTS posting (
    id         INTEGER PRIMARY KEY,
    order_id   INTEGER NOT NULL,
    account    TEXT    NOT NULL,
    hundredths INTEGER NOT NULL,
    what       TEXT    NOT NULL CHECK (what IN ('reserve', 'settle'))
);

CREATE INDEX IF NOT EXISTS posting_order ON posting (order_id);

CREATE TABLE IF NOT EXISTS receipt (
    id         INTEGER PRIMARY KEY,
    order_id   INTEGER NOT NULL,
    reference  TEXT    NOT NULL
);
