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
--
-- Ids and names compare byte by byte, as in SQLite: that is the quickest, and no library of the system has a say in it.

CREATE TABLE stagepost_meta (
    key   text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);

CREATE TABLE stagepost_ready (
    id          bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stage       text COLLATE "C" NOT NULL,
    message_id  text COLLATE "C" NOT NULL,
    flow_id     text COLLATE "C" NOT NULL,
    failures    integer NOT NULL CHECK (failures >= 0),
    deaths      integer NOT NULL CHECK (deaths >= 0),
    -- how often it was claimed: the fencing token
    deliveries  integer NOT NULL CHECK (deliveries >= 0),
    -- the worker incarnation that holds it
    owner       text COLLATE "C",
    -- the transaction of the last claim, and before it the one that wrote the row: an incarnation runs what it claimed
    -- in this order
    claimed_in  xid8    NOT NULL DEFAULT pg_current_xact_id(),
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
    stage       text COLLATE "C" NOT NULL,
    message_id  text COLLATE "C" NOT NULL,
    flow_id     text COLLATE "C" NOT NULL,
    failures    integer NOT NULL CHECK (failures >= 0),
    -- a message that died is a suspect, not delayed
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
CREATE INDEX stagepost_delayed_flow ON stagepost_delayed (flow_id);
-- A receiver stops at a stage at which too many messages wait after a failure.
CREATE INDEX stagepost_delayed_failed ON stagepost_delayed (stage) WHERE failures > 0;

CREATE TABLE stagepost_suspect (
    id          bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    due_at      bigint  NOT NULL,
    stage       text COLLATE "C" NOT NULL,
    message_id  text COLLATE "C" NOT NULL,
    flow_id     text COLLATE "C" NOT NULL,
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
CREATE INDEX stagepost_suspect_flow ON stagepost_suspect (flow_id);

-- The ids that were accepted from outside, once each. scope is the target's address, key the message id. is_direct is
-- true while it is not known whether the broker got what the accepting transaction sends.
CREATE TABLE stagepost_accepted (
    scope       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    digest      text   NOT NULL,
    run_id      text COLLATE "C",
    accepted_at bigint NOT NULL,
    flow_id     text COLLATE "C" NOT NULL,
    -- the hours of housekeeping that were counted by then: its age is what was counted since
    hour        bigint NOT NULL,
    is_direct   boolean NOT NULL DEFAULT false,
    PRIMARY KEY (scope, key)
);

-- A purge finds the oldest ids of each scope.
CREATE INDEX stagepost_accepted_hour ON stagepost_accepted (scope, hour, key);

-- The hours of the wall clock in which a housekeeper of the store ran, each counted once. The age of a row is the number
-- of hours that were counted since it was written. So neither an outage nor a leap of the clock makes rows old.
CREATE TABLE stagepost_housekeeping (
    number    bigint PRIMARY KEY,
    -- hours since 1970
    wall_hour bigint NOT NULL UNIQUE,
    -- the journal's greatest id then, and the position behind that line
    line      bigint  NOT NULL,
    position  text COLLATE "C" NOT NULL,
    -- the greatest ids of dead letters and replays then
    letter    bigint NOT NULL,
    replay    bigint NOT NULL
);

-- How long each app declares that ids of a scope are kept, in hours of housekeeping. The longest one counts.
CREATE TABLE stagepost_retention (
    scope text COLLATE "C" NOT NULL,
    app   text COLLATE "C" NOT NULL,
    hours bigint NOT NULL,
    PRIMARY KEY (scope, app)
);

-- When this store last had all messages of an address at a broker. As small as there are addresses.
CREATE TABLE stagepost_caught_up (
    address text COLLATE "C" NOT NULL,
    broker  text COLLATE "C" NOT NULL,
    -- the hours of housekeeping that were counted then; -1 if it never had
    hour    bigint  NOT NULL,
    PRIMARY KEY (address, broker)
);

-- When each consumer of an address last held no message of it. As small as there are consumers.
CREATE TABLE stagepost_consumer (
    address  text COLLATE "C" NOT NULL,
    broker   text COLLATE "C" NOT NULL,
    -- a thread of a process
    consumer text COLLATE "C" NOT NULL,
    -- the hours of housekeeping that were counted then; -1 if it never did
    hour     bigint NOT NULL,
    -- the hours that were counted when it last told that it lives
    seen     bigint NOT NULL,
    PRIMARY KEY (address, broker, consumer)
);

-- The broker as each process with a receiver and a dispatcher sees it. As small as there are such processes.
CREATE TABLE stagepost_edge (
    node       text COLLATE "C" PRIMARY KEY,
    broker     text   NOT NULL,
    state      text   NOT NULL,
    since      bigint NOT NULL,
    reason     text   NOT NULL,
    -- messages since the process started
    arrived    bigint NOT NULL,
    dispatched bigint NOT NULL,
    seen_at    bigint NOT NULL
);

-- Append-only history. Ids are given out before the commit, so a greater one may be seen first. A
-- reader that continues goes by the transaction, and reads only lines that are older than every open transaction.
--
-- The table is divided into ranges of ids, so that old lines are dropped and not deleted: deleting would ruin the order
-- that the index on txid depends on. Writers write to the open range. Before a range is dropped, the lines that must stay
-- move to the kept range, which ends where the oldest range begins. A reader names the table, and finds each line once.
CREATE TABLE stagepost_journal (
    id          bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    txid        bigint  NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    waypoint    text    NOT NULL,
    at          bigint  NOT NULL,
    node        text COLLATE "C" NOT NULL,
    stage       text COLLATE "C" NOT NULL,
    message_id  text COLLATE "C" NOT NULL,
    flow_id     text COLLATE "C" NOT NULL,
    attempt     integer NOT NULL,
    origin_at   bigint  NOT NULL,
    cause_id    text,
    kind        text,
    ordinal     integer,
    ms          double precision,
    bytes       bigint,
    detail      text
) PARTITION BY RANGE (id);

CREATE TABLE stagepost_journal_kept PARTITION OF stagepost_journal FOR VALUES FROM (MINVALUE) TO (1);
CREATE TABLE stagepost_journal_open PARTITION OF stagepost_journal FOR VALUES FROM (1) TO (MAXVALUE);

-- Ends the open range behind the ids that were given out, and begins another one. Returns where it begins; NULL if the
-- open range has no lines, and goes on. The pattern has no backslash, because standard_conforming_strings may be off.
CREATE FUNCTION stagepost_cut_journal() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    first bigint;
    behind bigint;
    range text;
BEGIN
    LOCK TABLE stagepost_journal IN ACCESS EXCLUSIVE MODE;
    PERFORM FROM stagepost_journal_open LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT substring(pg_get_expr(relpartbound, oid) FROM 'FROM [(]''([0-9]+)''[)]')::bigint INTO first
    FROM pg_class WHERE oid = 'stagepost_journal_open'::regclass;
    behind := nextval(pg_get_serial_sequence('stagepost_journal', 'id'));
    range := 'stagepost_journal_' || first;
    ALTER TABLE stagepost_journal DETACH PARTITION stagepost_journal_open;
    EXECUTE format('ALTER TABLE stagepost_journal_open RENAME TO %I', range);
    EXECUTE format(
        'CREATE TABLE stagepost_journal_open PARTITION OF stagepost_journal FOR VALUES FROM (%s) TO (MAXVALUE)', behind);
    EXECUTE format(
        'ALTER TABLE stagepost_journal ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', range, first, behind);
    RETURN behind;
END
$$;

-- Drops the oldest closed range. The lines of the flows that are kept move to the kept range. Returns NULL if another
-- purge has dropped it.
CREATE FUNCTION stagepost_drop_range(first bigint, next bigint, kept text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    range text := 'stagepost_journal_' || first;
    moved bigint;
BEGIN
    LOCK TABLE stagepost_journal IN ACCESS EXCLUSIVE MODE;
    IF to_regclass(range) IS NULL THEN
        RETURN NULL;
    END IF;
    ALTER TABLE stagepost_journal DETACH PARTITION stagepost_journal_kept;
    EXECUTE format('ALTER TABLE stagepost_journal DETACH PARTITION %I', range);
    EXECUTE format(
        'INSERT INTO stagepost_journal_kept SELECT * FROM %I WHERE flow_id = ANY ($1) ORDER BY id', range) USING kept;
    GET DIAGNOSTICS moved = ROW_COUNT;
    EXECUTE format('DROP TABLE %I', range);
    EXECUTE format(
        'ALTER TABLE stagepost_journal ATTACH PARTITION stagepost_journal_kept FOR VALUES FROM (MINVALUE) TO (%s)', next);
    RETURN moved;
END
$$;

-- As small as an index can be: rows lie in the order of their transactions, nearly.
CREATE INDEX stagepost_journal_txid ON stagepost_journal USING brin (txid) WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX stagepost_journal_message ON stagepost_journal (message_id);
CREATE INDEX stagepost_journal_flow ON stagepost_journal (flow_id);
-- Whether a stage has succeeded since it failed, however much its neighbours have written since.
CREATE INDEX stagepost_journal_committed ON stagepost_journal (stage, id) WHERE waypoint || '' = 'committed';

CREATE TABLE stagepost_dead_letter (
    id          bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id  text COLLATE "C" NOT NULL,
    flow_id     text COLLATE "C" NOT NULL,
    stage       text COLLATE "C" NOT NULL,
    reason      text COLLATE "C" NOT NULL,
    -- JSON: [{"type", "message"}, …], outermost first
    causes      text    NOT NULL,
    stack       text    NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    failures    integer NOT NULL,
    deaths      integer NOT NULL,
    deliveries  integer NOT NULL,
    origin_at   bigint  NOT NULL,
    dead_at     bigint  NOT NULL,
    node        text COLLATE "C" NOT NULL,
    declared_at text    NOT NULL,
    envelope    bytea   NOT NULL
);

CREATE INDEX stagepost_dead_letter_message ON stagepost_dead_letter (message_id);
CREATE INDEX stagepost_dead_letter_flow ON stagepost_dead_letter (flow_id);
CREATE INDEX stagepost_dead_letter_dead_at ON stagepost_dead_letter (dead_at);
CREATE INDEX stagepost_dead_letter_fingerprint ON stagepost_dead_letter (fingerprint, id);

-- Bulk initiation. Each start of a run's driver counts again, and only the counts of the start that ended last are summed.
CREATE TABLE stagepost_run (
    id          text COLLATE "C" PRIMARY KEY,
    target      text    NOT NULL,
    source      text    NOT NULL,
    started_at  bigint  NOT NULL,
    -- how often its driver has started
    starts      integer NOT NULL,
    -- the start that ended last
    ended_start integer,
    rows_in     bigint,
    ended_at    bigint,
    -- the hours of housekeeping that were counted when it was used last
    hour        bigint NOT NULL
);

CREATE INDEX stagepost_run_started ON stagepost_run (started_at);
CREATE INDEX stagepost_run_hour ON stagepost_run (hour);

-- The counts of a task commit with its rows. A task that is tried again replaces them.
CREATE TABLE stagepost_run_task (
    run_id      text COLLATE "C" NOT NULL,
    start       integer NOT NULL,
    task        integer NOT NULL,
    attempt     bigint  NOT NULL,
    started     bigint  NOT NULL,
    repeated    bigint  NOT NULL,
    quarantined bigint  NOT NULL,
    PRIMARY KEY (run_id, start, task)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE stagepost_quarantine (
    run_id      text COLLATE "C" NOT NULL,
    -- the file, and which of its records, counted from 1
    file        text COLLATE "C" NOT NULL,
    record      bigint NOT NULL,
    reason      text COLLATE "C" NOT NULL,
    flow_id     text COLLATE "C",
    row         text   NOT NULL,
    PRIMARY KEY (run_id, file, record)
);

-- The living incarnations: a row each, and a session advisory lock on the control connection that wrote it, under the row's id.
CREATE TABLE stagepost_incarnation (
    id          integer GENERATED ALWAYS AS IDENTITY (CYCLE) PRIMARY KEY,
    app         text COLLATE "C" NOT NULL,
    owner       text COLLATE "C" NOT NULL,
    node        text COLLATE "C" NOT NULL,
    host        text    NOT NULL,
    process     integer NOT NULL,
    -- how many messages it runs at a time
    slots       integer NOT NULL,
    started_at  bigint  NOT NULL,
    -- moves while its process is not paused
    beat        bigint  NOT NULL,
    -- how what it ran ended, where that is known: {"<row> <deliveries>": "timed-out"}
    states      jsonb   NOT NULL DEFAULT '{}',
    -- the stages whose first attempts may share a transaction: which of them ran when their process died is not known
    batched     text[]  NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- For stages whose queue is in another database. The inbox has the messages that they handled, with the bytes that they
-- produced until these have reached the queue. The outbox has the flows that were started and have not reached it yet.

CREATE TABLE stagepost_inbox (
    stage        text COLLATE "C" NOT NULL,
    message_id   text COLLATE "C" NOT NULL,
    -- a digest of the message's bytes: the same id with other content is a conflict
    digest       text   NOT NULL,
    handled_at   bigint NOT NULL,
    -- until then only who handled it sends what it produced
    leased_until bigint NOT NULL,
    -- NULL once it has been sent
    produced     bytea,
    is_sent      boolean NOT NULL DEFAULT false,
    -- the hours of housekeeping that were counted by then
    hour         bigint NOT NULL,
    PRIMARY KEY (stage, message_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Small, whatever the inbox holds.
CREATE INDEX stagepost_inbox_unsent ON stagepost_inbox (leased_until) WHERE NOT is_sent;
CREATE INDEX stagepost_inbox_hour ON stagepost_inbox (stage, hour, message_id) WHERE is_sent;

CREATE TABLE stagepost_outbox (
    id          bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    next_at     bigint  NOT NULL,
    attempts    integer NOT NULL DEFAULT 0,
    scope       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    digest      text    NOT NULL,
    run_id      text COLLATE "C",
    due_at      bigint,
    -- of what is published, for the subscribers that there are when it arrives
    topic       text COLLATE "C",
    node        text COLLATE "C" NOT NULL,
    held_at     bigint  NOT NULL,
    envelope    bytea   NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX stagepost_outbox_next ON stagepost_outbox (next_at);
-- A purge keeps the ids of what is here.
CREATE INDEX stagepost_outbox_key ON stagepost_outbox (scope, key);

-- Two-phase stages: what this database decided of a transaction that is prepared in the queue's. A row with is_commit
-- commits with the work; one without says that there was none, and that there will be none.
CREATE TABLE stagepost_decision (
    gid         text COLLATE "C" PRIMARY KEY,
    is_commit   boolean NOT NULL,
    decided_at  bigint  NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE INDEX stagepost_decision_kept ON stagepost_decision (is_commit, decided_at);

-- Replays of dead letters. The set is frozen when it is asked for, and is here, so that a replay that was broken off is
-- resumed with the letters that are left of it. A chunk's letters leave the set in the transaction that puts their
-- messages back.
CREATE TABLE stagepost_replay (
    -- the number by which people name it
    id        bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    who       text    NOT NULL,
    asked_at  bigint  NOT NULL,
    -- for people: which letters were asked for
    selection text    NOT NULL,
    -- messages a second, at most
    rate      double precision,
    letters   bigint  NOT NULL,
    replayed  bigint  NOT NULL,
    gone      bigint  NOT NULL
);

CREATE TABLE stagepost_replay_letter (
    replay bigint NOT NULL,
    letter bigint NOT NULL,
    PRIMARY KEY (replay, letter)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000
);

-- The business keys of the messages that stages of this database have handled. Another message with the same key of the
-- same stage is a duplicate of it.
CREATE TABLE stagepost_business_key (
    stage      text COLLATE "C" NOT NULL,
    -- a JSON array of the type's name and the key's values
    key        text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    -- a digest of the message's type and canonical body: the same key with other content is a conflict
    digest     text COLLATE "C" NOT NULL,
    handled_at bigint  NOT NULL,
    -- the reply that the stage itself gave, for the callers of duplicates
    reply      bytea,
    -- the hours of housekeeping that were counted by then
    hour       bigint NOT NULL,
    PRIMARY KEY (stage, key)
);

CREATE INDEX stagepost_business_key_hour ON stagepost_business_key (stage, hour, key);

-- The subscribers, which get a copy of each message that is published to a topic. Read in the transaction that publishes.
CREATE TABLE stagepost_subscription (
    topic       text COLLATE "C" NOT NULL,
    -- the stage that gets the copy
    subscriber  text COLLATE "C" NOT NULL,
    -- the app that declares it
    app         text COLLATE "C" NOT NULL,
    PRIMARY KEY (topic, subscriber)
);

-- Stages that fail, rather than their messages. A row comes with a stage's first failure. Each claim reads the
-- table, which is as small as the app has stages.
CREATE TABLE stagepost_circuit (
    stage         text COLLATE "C" PRIMARY KEY,
    -- JSON: the ids of the messages that failed since it last succeeded
    messages      text    NOT NULL,
    -- the journal's last line at the latest failure
    line          bigint  NOT NULL,
    error         text    NOT NULL,
    -- NULL: it is not paused
    paused_at     bigint,
    next_probe_at bigint,
    -- that failed
    probes        integer,
    -- the latest one's row in ready
    probe         bigint,
    probe_message text
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 100
);

-- The messages that were probes already, so that the others have their turn.
CREATE TABLE stagepost_probed (
    stage      text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (stage, message_id)
);

-- Which app declares which stage. As small as the apps have stages.
CREATE TABLE stagepost_declaration (
    stage      text COLLATE "C" PRIMARY KEY,
    endpoint   text COLLATE "C" NOT NULL,
    app        text COLLATE "C" NOT NULL,
    -- when a newer start of the app no longer declared it; NULL: it does
    dropped_at bigint,
    -- the names of the message types that it takes, for people
    types      text NOT NULL
);

-- The named readers of the journal, such as streams. A row each: where the reader began, and how far it has read.
CREATE TABLE stagepost_cursor (
    reader   text COLLATE "C" PRIMARY KEY,
    epoch    text   NOT NULL,
    first    bigint NOT NULL,
    position bigint NOT NULL,
    used_at  bigint NOT NULL,
    -- the hours of housekeeping that were counted when it was used last
    hour     bigint  NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- The findings of audits: one row a message and kind, however often an audit finds it again.
CREATE TABLE stagepost_audit_finding (
    kind       text COLLATE "C" NOT NULL,
    stage      text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    flow_id    text COLLATE "C" NOT NULL,
    detail     text COLLATE "C" NOT NULL,
    first_at   bigint NOT NULL,
    last_at    bigint NOT NULL,
    -- the hours of housekeeping that were counted when it was found last
    hour       bigint NOT NULL,
    PRIMARY KEY (kind, stage, message_id)
);

CREATE INDEX stagepost_audit_finding_latest ON stagepost_audit_finding (last_at DESC, kind, stage, message_id);
CREATE INDEX stagepost_audit_finding_hour ON stagepost_audit_finding (hour);

-- When each message may first have left, for its broker or for a consumer of the gateway. As small as there are messages
-- whose end is not known.
CREATE TABLE stagepost_departure (
    -- the queue row's
    stage      text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    left_at    bigint NOT NULL,
    -- the processes that died in a row while they delivered it
    deaths     integer NOT NULL DEFAULT 0,
    PRIMARY KEY (stage, message_id)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- The state from which the next audit of each series continues. As small as there are series.
CREATE TABLE stagepost_audit_state (
    series   text COLLATE "C" PRIMARY KEY,
    folder   text COLLATE "C" NOT NULL,
    -- the journal's position at which the state ends
    position text COLLATE "C" NOT NULL,
    named_at bigint NOT NULL,
    -- the hours of housekeeping that were counted when it was used last
    hour     bigint  NOT NULL
);

-- Spark's sink. Each attempt at a task stages its rows under a token of its own. The driver's one transaction starts their
-- flows and deletes them. They are logged, because a crash would otherwise empty them between staging and commit.
CREATE TABLE stagepost_staged (
    token     text COLLATE "C" PRIMARY KEY,
    -- the batch: see stagepost_sink_batch
    sink      text COLLATE "C" NOT NULL,
    query     text COLLATE "C" NOT NULL,
    batch     bigint NOT NULL,
    staged_at bigint NOT NULL,
    -- how often rows were added
    chunks    integer NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE INDEX stagepost_staged_batch ON stagepost_staged (sink, query, batch);
CREATE INDEX stagepost_staged_age ON stagepost_staged (staged_at);

CREATE TABLE stagepost_staged_row (
    token      text COLLATE "C" NOT NULL,
    -- its number within the attempt
    place      bigint NOT NULL,
    -- where it is found in the quarantine: a digest of its content
    address    text COLLATE "C" NOT NULL,
    -- NULL with a reason, as are digest and envelope
    message_id text COLLATE "C",
    flow_id    text COLLATE "C",
    digest     text COLLATE "C",
    origin_at  bigint NOT NULL,
    envelope   bytea,
    -- why it starts no flow
    reason     text COLLATE "C",
    row        text NOT NULL,
    PRIMARY KEY (token, place)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);

-- The batches that were committed, each with the number of its rows and a digest of their ids and bodies.
CREATE TABLE stagepost_sink_batch (
    -- the target of the rows
    sink         text COLLATE "C" NOT NULL,
    -- the streaming query, or one batch write
    query        text COLLATE "C" NOT NULL,
    batch        bigint NOT NULL,
    row_count    bigint NOT NULL,
    digest       text   NOT NULL,
    committed_at bigint NOT NULL,
    PRIMARY KEY (sink, query, batch)
);

-- Writes that are no batch of a streaming query.
CREATE INDEX stagepost_sink_batch_alone ON stagepost_sink_batch (committed_at) WHERE batch = -1;

-- The parts of the archive: a row for each range of the journal, and for some hundreds or thousands of dead letters. The
-- archive is what these rows name.
CREATE TABLE stagepost_manifest (
    id         bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    archive    text COLLATE "C" NOT NULL,
    -- journal or dead_letters
    kind       text COLLATE "C" NOT NULL,
    folder     text COLLATE "C" NOT NULL,
    -- the ids of its rows, from first up to, but without, next
    first      bigint  NOT NULL,
    next       bigint  NOT NULL,
    row_count  bigint  NOT NULL,
    seal       text COLLATE "C" NOT NULL,
    -- the purge mark of the commit that wrote it
    ends_at    text COLLATE "C" NOT NULL,
    written_at bigint  NOT NULL,
    has_gap    boolean NOT NULL,
    -- JSON: the ids of letters that do not count
    struck     text    NOT NULL
);

-- Of two archivers of one range one adds its manifest.
CREATE UNIQUE INDEX stagepost_manifest_first ON stagepost_manifest (first) WHERE kind = 'journal';

-- The calls to the outside that cannot join a stage's transaction. Each statement on these tables is in a transaction of
-- its own, on a connection that no stage uses. token is the highest that may call for a message.
CREATE TABLE stagepost_effect_token (
    message_id text COLLATE "C" NOT NULL,
    stage      text COLLATE "C" NOT NULL,
    token      bigint NOT NULL,
    -- in the order of the first tokens
    id         bigint GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (message_id, stage)
);

CREATE UNIQUE INDEX stagepost_effect_token_id ON stagepost_effect_token (id);

CREATE TABLE stagepost_effect (
    id            bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id    text COLLATE "C" NOT NULL,
    stage         text COLLATE "C" NOT NULL,
    message_index integer NOT NULL,
    -- empty for the stage's own handler
    handler       text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL,
    ordinal       integer NOT NULL,
    -- one more with each undo
    generation    integer NOT NULL,
    flow_id       text COLLATE "C" NOT NULL,
    -- The same effect with another request is a conflict.
    digest        text    NOT NULL,
    request       bytea   NOT NULL,
    -- NULL: unknown
    result        bytea,
    -- undone or doubted: the end of an effect that no commit kept
    ending        text
) WITH (fillfactor = 80);

CREATE UNIQUE INDEX stagepost_effect_key
    ON stagepost_effect (message_id, stage, message_index, handler, name, ordinal, generation);
CREATE INDEX stagepost_effect_flow ON stagepost_effect (flow_id);
-- As small as there are calls without an answer.
CREATE INDEX stagepost_effect_unknown ON stagepost_effect (id) WHERE result IS NULL AND ending IS NULL;
CREATE INDEX stagepost_effect_doubted ON stagepost_effect (id) WHERE ending = 'doubted';

-- A line for each call, written before the call begins.
CREATE TABLE stagepost_effect_intent (
    id           bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    effect       bigint  NOT NULL,
    token        bigint  NOT NULL,
    owner        text COLLATE "C" NOT NULL,
    node         text COLLATE "C" NOT NULL,
    at           bigint  NOT NULL,
    -- an earlier call may have done the same
    is_repeat    boolean NOT NULL,
    -- the attempt that called has ended
    is_over      boolean NOT NULL DEFAULT false,
    -- the call did nothing
    is_withdrawn boolean NOT NULL DEFAULT false
);

CREATE INDEX stagepost_effect_intent_effect ON stagepost_effect_intent (effect, id);
CREATE INDEX stagepost_effect_intent_repeat ON stagepost_effect_intent (id) WHERE is_repeat;
