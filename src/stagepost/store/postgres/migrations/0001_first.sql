-- The queue is three tables, so that the hot one holds only what can run now:
--
--   ready     what can be claimed, or is claimed (owner is set)
--   delayed   what waits for its time: sent with a delay, or failed and to be redelivered
--   suspect   what was running when its process died: runs alone, in a child process
--
-- A message is in exactly one of them, or in dead_letter, or it is done. Moving gives it a new id.
--
-- Every row of the queue is written and deleted within minutes: its tables are vacuumed by the thousand dead rows, however
-- large they are, and without pauses. Nothing is updated in place that an index does not cover, so that a fill factor
-- below 100 would only make them larger.

CREATE TABLE stagepost_meta (
    key   text PRIMARY KEY,
    value text NOT NULL
);

CREATE TABLE stagepost_ready (
    id          bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stage       text    NOT NULL,
    message_id  text    NOT NULL,
    flow_id     text    NOT NULL,
    failures    integer NOT NULL CHECK (failures >= 0),
    deaths      integer NOT NULL CHECK (deaths >= 0),
    -- how often it was claimed: the fencing token
    deliveries  integer NOT NULL CHECK (deliveries >= 0),
    -- the worker incarnation that holds it
    owner       text,
    -- the transaction of the last claim: an incarnation runs what it claimed in this order
    claimed_in  xid8,
    origin_at   bigint  NOT NULL,
    envelope    bytea   NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 10000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

-- Oldest flow first: a flow that began earlier is finished earlier, and few are under way at a time.
CREATE INDEX stagepost_ready_claimable ON stagepost_ready (stage, origin_at, id) WHERE owner IS NULL;
CREATE INDEX stagepost_ready_owned ON stagepost_ready (owner, stage) WHERE owner IS NOT NULL;

-- Called where a claim turns out to be somebody else's by now. The code is Stagepost's own.
CREATE FUNCTION stagepost_lease_lost() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'this attempt no longer holds its message' USING ERRCODE = 'SP001';
END
$$;

CREATE TABLE stagepost_delayed (
    id          bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    due_at      bigint  NOT NULL,
    stage       text    NOT NULL,
    message_id  text    NOT NULL,
    flow_id     text    NOT NULL,
    failures    integer NOT NULL CHECK (failures >= 0),
    -- what died is a suspect, not delayed
    deaths      integer NOT NULL CHECK (deaths = 0),
    deliveries  integer NOT NULL CHECK (deliveries >= 0),
    origin_at   bigint  NOT NULL,
    envelope    bytea   NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX stagepost_delayed_due ON stagepost_delayed (stage, due_at);

CREATE TABLE stagepost_suspect (
    id          bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    due_at      bigint  NOT NULL,
    stage       text    NOT NULL,
    message_id  text    NOT NULL,
    flow_id     text    NOT NULL,
    failures    integer NOT NULL CHECK (failures >= 0),
    deaths      integer NOT NULL CHECK (deaths >= 1),
    deliveries  integer NOT NULL CHECK (deliveries >= 0),
    origin_at   bigint  NOT NULL,
    envelope    bytea   NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000
);

CREATE INDEX stagepost_suspect_due ON stagepost_suspect (stage, deaths, due_at);

-- What was let in from outside, once. scope is the target's address, key the message id.
CREATE TABLE stagepost_accepted (
    scope       text   NOT NULL,
    key         text   NOT NULL,
    digest      text   NOT NULL,
    run_id      text,
    accepted_at bigint NOT NULL,
    PRIMARY KEY (scope, key)
);

-- Append-only history. Ids are given out before the commit, so a greater one may be seen first: whoever reads on from
-- where he was goes by the transaction, and reads only what is older than every transaction still open.
CREATE TABLE stagepost_journal (
    id          bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    txid        bigint  NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    waypoint    text    NOT NULL,
    at          bigint  NOT NULL,
    node        text    NOT NULL,
    stage       text    NOT NULL,
    message_id  text    NOT NULL,
    flow_id     text    NOT NULL,
    attempt     integer NOT NULL,
    origin_at   bigint  NOT NULL,
    cause_id    text,
    kind        text,
    ordinal     integer,
    ms          double precision,
    bytes       bigint,
    detail      text
);

-- As small as an index can be: rows lie in the order of their transactions, nearly.
CREATE INDEX stagepost_journal_txid ON stagepost_journal USING brin (txid) WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX stagepost_journal_message ON stagepost_journal (message_id);
CREATE INDEX stagepost_journal_flow ON stagepost_journal (flow_id);

CREATE TABLE stagepost_dead_letter (
    id          bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id  text    NOT NULL,
    flow_id     text    NOT NULL,
    stage       text    NOT NULL,
    reason      text    NOT NULL,
    -- JSON: [{"type", "message"}, …], outermost first
    causes      text    NOT NULL,
    stack       text    NOT NULL,
    fingerprint text    NOT NULL,
    failures    integer NOT NULL,
    deaths      integer NOT NULL,
    deliveries  integer NOT NULL,
    origin_at   bigint  NOT NULL,
    dead_at     bigint  NOT NULL,
    node        text    NOT NULL,
    declared_at text    NOT NULL,
    envelope    bytea   NOT NULL
);

CREATE INDEX stagepost_dead_letter_message ON stagepost_dead_letter (message_id);
CREATE INDEX stagepost_dead_letter_flow ON stagepost_dead_letter (flow_id);
CREATE INDEX stagepost_dead_letter_dead_at ON stagepost_dead_letter (dead_at);
CREATE INDEX stagepost_dead_letter_fingerprint ON stagepost_dead_letter (fingerprint, id);

-- Bulk initiation. A chunk's counts commit with its rows, so a chunk that is tried again counts once.
CREATE TABLE stagepost_run (
    id          text   PRIMARY KEY,
    target      text   NOT NULL,
    source      text   NOT NULL,
    started_at  bigint NOT NULL,
    rows_in     bigint,
    ended_at    bigint
);

CREATE TABLE stagepost_run_chunk (
    run_id      text    NOT NULL,
    task        integer NOT NULL,
    chunk       integer NOT NULL,
    started     integer NOT NULL,
    repeated    integer NOT NULL,
    quarantined integer NOT NULL,
    PRIMARY KEY (run_id, task, chunk)
);

CREATE TABLE stagepost_quarantine (
    run_id      text   NOT NULL,
    -- the file, and which of its records, counted from 1
    file        text   NOT NULL,
    record      bigint NOT NULL,
    reason      text   NOT NULL,
    flow_id     text,
    row         text   NOT NULL,
    PRIMARY KEY (run_id, file, record)
);

-- Who lives: a row each, and a session advisory lock on the control connection that wrote it, under the row's id.
CREATE TABLE stagepost_incarnation (
    id          integer GENERATED ALWAYS AS IDENTITY (CYCLE) PRIMARY KEY,
    app         text    NOT NULL,
    owner       text    NOT NULL,
    node        text    NOT NULL,
    host        text    NOT NULL,
    process     integer NOT NULL,
    -- how many messages it runs at a time
    slots       integer NOT NULL,
    started_at  bigint  NOT NULL,
    -- moves while its process is not paused
    beat        bigint  NOT NULL,
    -- how what it ran ended, where that is known: {"<row> <deliveries>": "timed-out"}
    states      jsonb   NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
