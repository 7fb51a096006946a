-- Which app declares which stage. As small as the apps have stages.
CREATE TABLE stagepost_declaration (
    stage      TEXT PRIMARY KEY,
    endpoint   TEXT NOT NULL,
    app        TEXT NOT NULL,
    -- when a newer start of the app no longer declared it; NULL: it does
    dropped_at INTEGER
) STRICT, WITHOUT ROWID;
