-- The example's own tables, in the same database as Stagepost's. So one commit covers both.
--
-- The ledger is append-only and has no unique key on purpose. No constraint hides a repeated posting, so the sums and
-- the counts show it.

CREATE TABLE IF NOT EXISTS posting (
    id         bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id   bigint  NOT NULL,
    account    text    NOT NULL,
    hundredths bigint  NOT NULL,
    what       text    NOT NULL CHECK (what IN ('reserve', 'settle'))
);

CREATE INDEX IF NOT EXISTS posting_order ON posting (order_id);

CREATE TABLE IF NOT EXISTS receipt (
    id         bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id   bigint  NOT NULL,
    reference  text    NOT NULL
);
