-- Stages that fail, rather than their messages. A row comes with a stage's first failure; what is claimed asks for it,
-- so it is as small as the app has stages.
CREATE TABLE stagepost_streak (
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

-- Whether a stage has succeeded since it failed, however much its neighbours have written since.
CREATE INDEX stagepost_journal_committed ON stagepost_journal (stage) WHERE waypoint = 'committed';
