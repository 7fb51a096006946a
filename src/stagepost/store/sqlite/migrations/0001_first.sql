-- The queue is three tables, so that the hot one holds only what can run now:
--
--   ready     what can be claimed, or is claimed (owner is set)
--   delayed   what waits for its time: sent with a delay, or failed and to be redelivered
--   suspect   what was running when its process died: runs alone, in a child process
--
-- A message is in exactly one of them, or in dead_letter, or it is done. Moving gives it a new id. All ids are
-- AUTOINCREMENT: without it SQLite hands out the ids of deleted rows again, and a paused owner that wakes up would find
-- "its" row, now another message.

CREATE TABLE stagepost_meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE stagepost_ready (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    stage       TEXT    NOT NULL,
    message_id  TEXT    NOT NULL,
    flow_id     TEXT    NOT NULL,
    failures    INTEGER NOT NULL CHECK (failures >= 0),
    deaths      INTEGER NOT NULL CHECK (deaths >= 0),
    -- how often it was claimed: the fencing token
    deliveries  INTEGER NOT NULL CHECK (deliveries >= 0),
    -- the worker incarnation that holds it
    owner       TEXT,
    origin_at   INTEGER NOT NULL,
    envelope    BLOB    NOT NULL
) STRICT;

-- Oldest flow first: a flow that began earlier is finished earlier, and few are under way at a time.
CREATE INDEX stagepost_ready_claimable ON stagepost_ready (stage, origin_at, id) WHERE owner IS NULL;
CREATE INDEX stagepost_ready_owned ON stagepost_ready (owner, stage) WHERE owner IS NOT NULL;

CREATE TABLE stagepost_delayed (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    due_at      INTEGER NOT NULL,
    stage       TEXT    NOT NULL,
    message_id  TEXT    NOT NULL,
    flow_id     TEXT    NOT NULL,
    failures    INTEGER NOT NULL CHECK (failures >= 0),
    -- a message that died is a suspect, not delayed
    deaths      INTEGER NOT NULL CHECK (deaths = 0),
    deliveries  INTEGER NOT NULL CHECK (deliveries >= 0),
    origin_at   INTEGER NOT NULL,
    envelope    BLOB    NOT NULL
) STRICT;

CREATE INDEX stagepost_delayed_due ON stagepost_delayed (stage, due_at);
CREATE INDEX stagepost_delayed_flow ON stagepost_delayed (flow_id);
-- A receiver stops at a stage at which too many messages wait after a failure.
CREATE INDEX stagepost_delayed_failed ON stagepost_delayed (stage) WHERE failures > 0;

CREATE TABLE stagepost_suspect (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    due_at      INTEGER NOT NULL,
    stage       TEXT    NOT NULL,
    message_id  TEXT    NOT NULL,
    flow_id     TEXT    NOT NULL,
    failures    INTEGER NOT NULL CHECK (failures >= 0),
    deaths      INTEGER NOT NULL CHECK (deaths >= 1),
    deliveries  INTEGER NOT NULL CHECK (deliveries >= 0),
    origin_at   INTEGER NOT NULL,
    envelope    BLOB    NOT NULL
) STRICT;

CREATE INDEX stagepost_suspect_due ON stagepost_suspect (stage, deaths, due_at);
CREATE INDEX stagepost_suspect_flow ON stagepost_suspect (flow_id);

-- The ids that were accepted from outside, once each. scope is the target's address, key the message id. is_direct is 1
-- while it is not known whether the broker got what the accepting transaction sends.
CREATE TABLE stagepost_accepted (
    scope       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    digest      TEXT    NOT NULL,
    run_id      TEXT,
    accepted_at INTEGER NOT NULL,
    flow_id     TEXT    NOT NULL,
    -- the hours of housekeeping that were counted by then: its age is what was counted since
    hour        INTEGER NOT NULL,
    is_direct   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;

-- A purge finds the oldest ids of each scope.
CREATE INDEX stagepost_accepted_hour ON stagepost_accepted (scope, hour, key);

-- The hours of the wall clock in which a housekeeper of the store ran, each counted once. The age of a row is the number
-- of hours that were counted since it was written. So neither an outage nor a leap of the clock makes rows old.
CREATE TABLE stagepost_housekeeping (
    number    INTEGER PRIMARY KEY,
    -- hours since 1970
    wall_hour INTEGER NOT NULL UNIQUE,
    -- the journal's greatest id then, and the position behind that line
    line      INTEGER NOT NULL,
    position  TEXT    NOT NULL,
    -- the greatest ids of dead letters and replays then
    letter    INTEGER NOT NULL,
    replay    INTEGER NOT NULL
) STRICT;

-- How long each app declares that ids of a scope are kept, in hours of housekeeping. The longest one counts.
CREATE TABLE stagepost_retention (
    scope TEXT    NOT NULL,
    app   TEXT    NOT NULL,
    hours INTEGER NOT NULL,
    PRIMARY KEY (scope, app)
) STRICT, WITHOUT ROWID;

-- When this store last had all messages of an address at a broker. As small as there are addresses.
CREATE TABLE stagepost_caught_up (
    address TEXT    NOT NULL,
    broker  TEXT    NOT NULL,
    -- the hours of housekeeping that were counted then; -1 if it never had
    hour    INTEGER NOT NULL,
    PRIMARY KEY (address, broker)
) STRICT, WITHOUT ROWID;

-- When each consumer of an address last held no message of it. As small as there are consumers.
CREATE TABLE stagepost_consumer (
    address  TEXT    NOT NULL,
    broker   TEXT    NOT NULL,
    -- a thread of a process
    consumer TEXT    NOT NULL,
    -- the hours of housekeeping that were counted then; -1 if it never did
    hour     INTEGER NOT NULL,
    -- the hours that were counted when it last told that it lives
    seen     INTEGER NOT NULL,
    PRIMARY KEY (address, broker, consumer)
) STRICT, WITHOUT ROWID;

-- The broker as each process with a receiver and a dispatcher sees it. As small as there are such processes.
CREATE TABLE stagepost_edge (
    node       TEXT    PRIMARY KEY,
    broker     TEXT    NOT NULL,
    state      TEXT    NOT NULL,
    since      INTEGER NOT NULL,
    reason     TEXT    NOT NULL,
    -- messages since the process started
    arrived    INTEGER NOT NULL,
    dispatched INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Append-only history. Readers go by id; AUTOINCREMENT again, for a purge may empty the table.
CREATE TABLE stagepost_journal (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    waypoint    TEXT    NOT NULL,
    at          INTEGER NOT NULL,
    node        TEXT    NOT NULL,
    stage       TEXT    NOT NULL,
    message_id  TEXT    NOT NULL,
    flow_id     TEXT    NOT NULL,
    attempt     INTEGER NOT NULL,
    origin_at   INTEGER NOT NULL,
    cause_id    TEXT,
    kind        TEXT,
    ordinal     INTEGER,
    ms          REAL,
    bytes       INTEGER,
    detail      TEXT
) STRICT;

CREATE INDEX stagepost_journal_message ON stagepost_journal (message_id);
CREATE INDEX stagepost_journal_flow ON stagepost_journal (flow_id);
-- Whether a stage has succeeded since it failed, however much its neighbours have written since.
CREATE INDEX stagepost_journal_committed ON stagepost_journal (stage) WHERE waypoint = 'committed';

CREATE TABLE stagepost_dead_letter (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id  TEXT    NOT NULL,
    flow_id     TEXT    NOT NULL,
    stage       TEXT    NOT NULL,
    reason      TEXT    NOT NULL,
    -- JSON: [{"type", "message"}, …], outermost first
    causes      TEXT    NOT NULL,
    stack       TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    failures    INTEGER NOT NULL,
    deaths      INTEGER NOT NULL,
    deliveries  INTEGER NOT NULL,
    origin_at   INTEGER NOT NULL,
    dead_at     INTEGER NOT NULL,
    node        TEXT    NOT NULL,
    declared_at TEXT    NOT NULL,
    envelope    BLOB    NOT NULL
) STRICT;

CREATE INDEX stagepost_dead_letter_message ON stagepost_dead_letter (message_id);
CREATE INDEX stagepost_dead_letter_flow ON stagepost_dead_letter (flow_id);
CREATE INDEX stagepost_dead_letter_dead_at ON stagepost_dead_letter (dead_at);
CREATE INDEX stagepost_dead_letter_fingerprint ON stagepost_dead_letter (fingerprint, id);

-- Bulk initiation. Each start of a run's driver counts again, and only the counts of the start that ended last are summed.
CREATE TABLE stagepost_run (
    id          TEXT    PRIMARY KEY,
    target      TEXT    NOT NULL,
    source      TEXT    NOT NULL,
    started_at  INTEGER NOT NULL,
    -- how often its driver has started
    starts      INTEGER NOT NULL,
    -- the start that ended last
    ended_start INTEGER,
    rows_in     INTEGER,
    ended_at    INTEGER,
    -- the hours of housekeeping that were counted when it was used last
    hour        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX stagepost_run_started ON stagepost_run (started_at);
CREATE INDEX stagepost_run_hour ON stagepost_run (hour);

-- The counts of a task commit with its rows. A task that is tried again replaces them.
CREATE TABLE stagepost_run_task (
    run_id      TEXT    NOT NULL,
    start       INTEGER NOT NULL,
    task        INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    started     INTEGER NOT NULL,
    repeated    INTEGER NOT NULL,
    quarantined INTEGER NOT NULL,
    PRIMARY KEY (run_id, start, task)
) STRICT, WITHOUT ROWID;

CREATE TABLE stagepost_quarantine (
    run_id      TEXT    NOT NULL,
    -- the file, and which of its records, counted from 1
    file        TEXT    NOT NULL,
    record      INTEGER NOT NULL,
    reason      TEXT    NOT NULL,
    flow_id     TEXT,
    row         TEXT    NOT NULL,
    PRIMARY KEY (run_id, file, record)
) STRICT, WITHOUT ROWID;

-- For stages whose queue is in another database. The inbox has the messages that they handled, with the bytes that they
-- produced until these have reached the queue. The outbox has the flows that were started and have not reached it yet.

CREATE TABLE stagepost_inbox (
    stage        TEXT    NOT NULL,
    message_id   TEXT    NOT NULL,
    -- a digest of the message's bytes: the same id with other content is a conflict
    digest       TEXT    NOT NULL,
    handled_at   INTEGER NOT NULL,
    -- until then only who handled it sends what it produced
    leased_until INTEGER NOT NULL,
    -- NULL once it has been sent
    produced     BLOB,
    is_sent      INTEGER NOT NULL DEFAULT 0,
    -- the hours of housekeeping that were counted by then
    hour         INTEGER NOT NULL,
    PRIMARY KEY (stage, message_id)
) STRICT, WITHOUT ROWID;

-- Small, whatever the inbox holds.
CREATE INDEX stagepost_inbox_unsent ON stagepost_inbox (leased_until) WHERE NOT is_sent;
CREATE INDEX stagepost_inbox_hour ON stagepost_inbox (stage, hour, message_id) WHERE is_sent;

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
-- A purge keeps the ids of what is here.
CREATE INDEX stagepost_outbox_key ON stagepost_outbox (scope, key);

-- Replays of dead letters. The set is frozen when it is asked for, and is here, so that a replay that was broken off is
-- resumed with the letters that are left of it. A chunk's letters leave the set in the transaction that puts their
-- messages back.
CREATE TABLE stagepost_replay (
    -- the number by which people name it
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    who       TEXT    NOT NULL,
    asked_at  INTEGER NOT NULL,
    -- for people: which letters were asked for
    selection TEXT    NOT NULL,
    -- messages a second, at most
    rate      REAL,
    letters   INTEGER NOT NULL,
    replayed  INTEGER NOT NULL,
    gone      INTEGER NOT NULL
) STRICT;

CREATE TABLE stagepost_replay_letter (
    replay INTEGER NOT NULL,
    letter INTEGER NOT NULL,
    PRIMARY KEY (replay, letter)
) STRICT, WITHOUT ROWID;

-- The business keys of the messages that stages of this database have handled. Another message with the same key of the
-- same stage is a duplicate of it.
CREATE TABLE stagepost_business_key (
    stage      TEXT NOT NULL,
    -- a JSON array of the type's name and the key's values
    key        TEXT NOT NULL,
    message_id TEXT NOT NULL,
    -- a digest of the message's type and canonical body: the same key with other content is a conflict
    digest     TEXT NOT NULL,
    handled_at INTEGER NOT NULL,
    -- the reply that the stage itself gave, for the callers of duplicates
    reply      BLOB,
    -- the hours of housekeeping that were counted by then
    hour       INTEGER NOT NULL,
    PRIMARY KEY (stage, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX stagepost_business_key_hour ON stagepost_business_key (stage, hour, key);

-- The subscribers, which get a copy of each message that is published to a topic. Read in the transaction that publishes.
CREATE TABLE stagepost_subscription (
    topic       TEXT NOT NULL,
    -- the stage that gets the copy
    subscriber  TEXT NOT NULL,
    -- the app that declares it
    app         TEXT NOT NULL,
    PRIMARY KEY (topic, subscriber)
) STRICT, WITHOUT ROWID;

-- Stages that fail, rather than their messages. A row comes with a stage's first failure. Each claim reads the
-- table, which is as small as the app has stages.
CREATE TABLE stagepost_circuit (
    stage         TEXT    PRIMARY KEY,
    -- JSON: the ids of the messages that failed since it last succeeded
    messages      TEXT    NOT NULL,
    -- the journal's last line at the latest failure
    line          INTEGER NOT NULL,
    error         TEXT    NOT NULL,
    -- NULL: it is not paused
    paused_at     INTEGER,
    next_probe_at INTEGER,
    -- that failed
    probes        INTEGER,
    -- the latest one's row in ready
    probe         INTEGER,
    probe_message TEXT
) STRICT, WITHOUT ROWID;

-- The messages that were probes already, so that the others have their turn.
CREATE TABLE stagepost_probed (
    stage      TEXT NOT NULL,
    message_id TEXT NOT NULL,
    PRIMARY KEY (stage, message_id)
) STRICT, WITHOUT ROWID;

-- Which app declares which stage. As small as the apps have stages.
CREATE TABLE stagepost_declaration (
    stage      TEXT PRIMARY KEY,
    endpoint   TEXT NOT NULL,
    app        TEXT NOT NULL,
    -- when a newer start of the app no longer declared it; NULL: it does
    dropped_at INTEGER,
    -- the names of the message types that it takes, for people
    types      TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The named readers of the journal, such as streams. A row each: where the reader began, and how far it has read.
CREATE TABLE stagepost_cursor (
    reader   TEXT    PRIMARY KEY,
    epoch    TEXT    NOT NULL,
    first    INTEGER NOT NULL,
    position INTEGER NOT NULL,
    used_at  INTEGER NOT NULL,
    -- the hours of housekeeping that were counted when it was used last
    hour     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The findings of audits: one row a message and kind, however often an audit finds it again.
CREATE TABLE stagepost_audit_finding (
    kind       TEXT    NOT NULL,
    stage      TEXT    NOT NULL,
    message_id TEXT    NOT NULL,
    flow_id    TEXT    NOT NULL,
    detail     TEXT    NOT NULL,
    first_at   INTEGER NOT NULL,
    last_at    INTEGER NOT NULL,
    -- the hours of housekeeping that were counted when it was found last
    hour       INTEGER NOT NULL,
    PRIMARY KEY (kind, stage, message_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX stagepost_audit_finding_latest ON stagepost_audit_finding (last_at DESC, kind, stage, message_id);
CREATE INDEX stagepost_audit_finding_hour ON stagepost_audit_finding (hour);

-- When each message may first have left, for its broker or for a consumer of the gateway. As small as there are messages
-- whose end is not known.
CREATE TABLE stagepost_departure (
    -- the queue row's
    stage      TEXT    NOT NULL,
    message_id TEXT    NOT NULL,
    left_at    INTEGER NOT NULL,
    -- the processes that died in a row while they delivered it
    deaths     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (stage, message_id)
) STRICT, WITHOUT ROWID;

-- The state from which the next audit of each series continues. As small as there are series.
CREATE TABLE stagepost_audit_state (
    series   TEXT    PRIMARY KEY,
    folder   TEXT    NOT NULL,
    -- the journal's position at which the state ends
    position TEXT    NOT NULL,
    named_at INTEGER NOT NULL,
    -- the hours of housekeeping that were counted when it was used last
    hour     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Spark's sink. Each attempt at a task stages its rows under a token of its own. The driver's one transaction starts their
-- flows and deletes them.
CREATE TABLE stagepost_staged (
    token     TEXT    PRIMARY KEY,
    -- the batch: see stagepost_sink_batch
    sink      TEXT    NOT NULL,
    query     TEXT    NOT NULL,
    batch     INTEGER NOT NULL,
    staged_at INTEGER NOT NULL,
    -- how often rows were added
    chunks    INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE INDEX stagepost_staged_batch ON stagepost_staged (sink, query, batch);
CREATE INDEX stagepost_staged_age ON stagepost_staged (staged_at);

CREATE TABLE stagepost_staged_row (
    token      TEXT    NOT NULL,
    -- its number within the attempt
    place      INTEGER NOT NULL,
    -- where it is found in the quarantine: a digest of its content
    address    TEXT    NOT NULL,
    -- NULL with a reason, as are digest and envelope
    message_id TEXT,
    flow_id    TEXT,
    digest     TEXT,
    origin_at  INTEGER NOT NULL,
    envelope   BLOB,
    -- why it starts no flow
    reason     TEXT,
    row        TEXT    NOT NULL,
    PRIMARY KEY (token, place)
) STRICT, WITHOUT ROWID;

-- The batches that were committed, each with the number of its rows and a digest of their ids and bodies.
CREATE TABLE stagepost_sink_batch (
    -- the target of the rows
    sink         TEXT    NOT NULL,
    -- the streaming query, or one batch write
    query        TEXT    NOT NULL,
    batch        INTEGER NOT NULL,
    row_count    INTEGER NOT NULL,
    digest       TEXT    NOT NULL,
    committed_at INTEGER NOT NULL,
    PRIMARY KEY (sink, query, batch)
) STRICT, WITHOUT ROWID;

-- Writes that are no batch of a streaming query.
CREATE INDEX stagepost_sink_batch_alone ON stagepost_sink_batch (committed_at) WHERE batch = -1;

-- The parts of the archive: a row for each range of the journal, and for some hundreds or thousands of dead letters. The
-- archive is what these rows name.
CREATE TABLE stagepost_manifest (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    archive    TEXT    NOT NULL,
    -- journal or dead_letters
    kind       TEXT    NOT NULL,
    folder     TEXT    NOT NULL,
    -- the ids of its rows, from first up to, but without, next
    first      INTEGER NOT NULL,
    next       INTEGER NOT NULL,
    row_count  INTEGER NOT NULL,
    seal       TEXT    NOT NULL,
    -- the purge mark of the commit that wrote it
    ends_at    TEXT    NOT NULL,
    written_at INTEGER NOT NULL,
    has_gap    INTEGER NOT NULL,
    -- JSON: the ids of letters that do not count
    struck     TEXT    NOT NULL
) STRICT;

-- Of two archivers of one range one adds its manifest.
CREATE UNIQUE INDEX stagepost_manifest_first ON stagepost_manifest (first) WHERE kind = 'journal';
