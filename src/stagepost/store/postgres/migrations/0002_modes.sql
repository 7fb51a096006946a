-- For stages whose queue is in another database. What they have handled is in the inbox, with what they produced until
-- that has reached the queue; what was started and has not reached it yet is in the outbox.

CREATE TABLE stagepost_inbox (
    stage        text   NOT NULL,
    message_id   text   NOT NULL,
    -- of the message's bytes: the same id with other content is a conflict
    digest       text   NOT NULL,
    handled_at   bigint NOT NULL,
    -- until then only who handled it sends what it produced
    leased_until bigint NOT NULL,
    -- NULL once it has been sent
    produced     bytea,
    is_sent      boolean NOT NULL DEFAULT false,
    PRIMARY KEY (stage, message_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Small, whatever the inbox holds.
CREATE INDEX stagepost_inbox_unsent ON stagepost_inbox (leased_until) WHERE NOT is_sent;

CREATE TABLE stagepost_outbox (
    id          bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    next_at     bigint  NOT NULL,
    attempts    integer NOT NULL DEFAULT 0,
    scope       text    NOT NULL,
    key         text    NOT NULL,
    digest      text    NOT NULL,
    run_id      text,
    due_at      bigint,
    -- of what is published, for the subscribers that there are when it arrives
    topic       text,
    node        text    NOT NULL,
    held_at     bigint  NOT NULL,
    envelope    bytea   NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX stagepost_outbox_next ON stagepost_outbox (next_at);

-- Two-phase stages: what this database decided of a transaction that is prepared in the queue's. A row with is_commit
-- commits with the work; one without says that there was none, and that there will be none.
CREATE TABLE stagepost_decision (
    gid         text    PRIMARY KEY,
    is_commit   boolean NOT NULL,
    decided_at  bigint  NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE INDEX stagepost_decision_kept ON stagepost_decision (is_commit, decided_at);
