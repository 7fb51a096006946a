-- Which app declares which stage. As small as the apps have stages.
CREATE TABLE stagepost_declaration (
    stage      text PRIMARY KEY,
    endpoint   text NOT NULL,
    app        text NOT NULL,
    -- when a newer start of the app no longer declared it; NULL: it does
    dropped_at bigint
);
