-- When tasks must have begun: only those that have such a deadline are here, and only until it has passed.
CREATE TABLE deadlines (
    seq           INTEGER PRIMARY KEY,
    expires_at_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX deadlines_by_time ON deadlines (expires_at_ms);

-- What a level of priority is worth, in queues where that is not the usual.
CREATE TABLE steps (
    queue   TEXT PRIMARY KEY,
    step_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE schedules (
    name       TEXT PRIMARY KEY,
    version    INTEGER NOT NULL,
    next_at_ms INTEGER,                                 -- NULL while there is no tick to make
    schedule   BLOB NOT NULL                            -- JSON
) STRICT, WITHOUT ROWID;
CREATE INDEX schedules_by_tick ON schedules (next_at_ms) WHERE next_at_ms IS NOT NULL;

-- What an operator wants of a worker, for as long as its record lasts.
ALTER TABLE workers ADD COLUMN orders BLOB;             -- JSON
