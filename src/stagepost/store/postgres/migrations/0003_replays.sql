-- Replays of dead letters. The set is frozen when it is asked for, and is here, so that a replay that was broken off is
-- resumed with the letters that are left of it. A chunk's letters leave the set in the transaction that puts their
-- messages back.
CREATE TABLE stagepost_replay (
    -- what people name it by
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
