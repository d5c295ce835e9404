-- What finished steps of tasks gave, under their keys.
CREATE TABLE kept (
    key           TEXT NOT NULL UNIQUE,
    value         BLOB NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX kept_until ON kept (expires_at_ms);
