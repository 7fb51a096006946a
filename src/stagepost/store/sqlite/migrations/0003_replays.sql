-- Replays of dead letters. The set is frozen when it is asked for, and is here, so that a replay that was broken off is
-- resumed with the letters that are left of it. A chunk's letters leave the set in the transaction that puts their
-- messages back.
CREATE TABLE stagepost_replay (
    -- what people name it by
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

CREATE INDEX stagepost_dead_letter_dead_at ON stagepost_dead_letter (dead_at);
