-- Who gets a copy of what is published to a topic. Read in the transaction that publishes.
CREATE TABLE stagepost_subscription (
    topic       TEXT NOT NULL,
    -- the stage that gets the copy
    subscriber  TEXT NOT NULL,
    -- the app that declares it
    app         TEXT NOT NULL,
    PRIMARY KEY (topic, subscriber)
) STRICT, WITHOUT ROWID;
