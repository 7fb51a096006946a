-- Who gets a copy of what is published to a topic. Read in the transaction that publishes.
CREATE TABLE stagepost_subscription (
    topic       text NOT NULL,
    -- the stage that gets the copy
    subscriber  text NOT NULL,
    -- the app that declares it
    app         text NOT NULL,
    PRIMARY KEY (topic, subscriber)
);
