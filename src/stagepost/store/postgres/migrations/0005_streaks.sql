-- Stages that fail, rather than their messages. A row comes with a stage's first failure; what is claimed asks for it,
-- so it is as small as the app has stages, and kept so.
CREATE TABLE stagepost_streak (
    stage         text    PRIMARY KEY,
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
    stage      text NOT NULL,
    message_id text NOT NULL,
    PRIMARY KEY (stage, message_id)
);

-- Whether a stage has succeeded since it failed, however much its neighbours have written since.
CREATE INDEX stagepost_journal_committed ON stagepost_journal (stage, id) WHERE waypoint || '' = 'committed';
