-- One row a task, in exactly one state: nothing can be lost between two tables.
CREATE TABLE tasks (
    seq                 INTEGER PRIMARY KEY,            -- order of arrival
    task_id             TEXT NOT NULL UNIQUE,
    queue               TEXT NOT NULL,
    type                TEXT NOT NULL,
    state               TEXT NOT NULL,
    priority            INTEGER NOT NULL,
    rank                INTEGER NOT NULL,               -- place in the queue: core/priority.py
    run_at_ms           INTEGER NOT NULL,
    attempt             INTEGER NOT NULL DEFAULT 0,
    deliveries          INTEGER NOT NULL DEFAULT 0,
    created_at_ms       INTEGER NOT NULL,
    finished_at_ms      INTEGER,
    request_id          TEXT,
    token               TEXT,                           -- the claim, while there is one
    claim_id            TEXT,
    worker_id           TEXT,
    claimed_at_ms       INTEGER,
    lease_expires_at_ms INTEGER,
    cancel_requested    INTEGER NOT NULL DEFAULT 0,
    reason              TEXT,
    progress            BLOB,
    result              BLOB,
    -- As long as the claim that is to come: a row that does not grow needs no new page, so a full disk can be drained.
    room                BLOB
) STRICT;

-- The rest of the envelope lives apart: it is never rewritten when the state changes.
CREATE TABLE envelopes (
    seq     INTEGER PRIMARY KEY,
    payload BLOB NOT NULL,
    headers TEXT,                                       -- JSON, NULL for none
    policy  TEXT                                        -- JSON, NULL for the default
) STRICT;

-- One row for every claim that ended without success. The claim that succeeded is the last one, and stays in
-- its task's row: an ack is then one update of one row, which is half of the cost of a task.
CREATE TABLE attempts (
    seq           INTEGER NOT NULL,
    delivery      INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    token         TEXT NOT NULL,
    worker_id     TEXT NOT NULL,
    event         TEXT NOT NULL,
    outcome       TEXT NOT NULL,
    started_at_ms INTEGER NOT NULL,
    ended_at_ms   INTEGER NOT NULL,
    error_type    TEXT,
    error         TEXT,                                 -- JSON
    PRIMARY KEY (seq, delivery)
) STRICT, WITHOUT ROWID;

-- Types stand before ranks: tasks of a type that no worker knows are stepped over, not scanned.
CREATE INDEX ready ON tasks (queue, type, rank, seq, priority) WHERE state = {ready};
CREATE INDEX due ON tasks (run_at_ms, state, queue) WHERE state IN ({scheduled}, {retry_pending});
-- No lease in it: a heartbeat changes no index.
CREATE INDEX claimed ON tasks (claim_id) WHERE state = {claimed};
-- Not `state IN (…)`: SQLite would build that list anew for every row that changes, at half of the claim rate.
CREATE INDEX finished ON tasks (state, finished_at_ms, queue) WHERE finished_at_ms IS NOT NULL;
CREATE INDEX blocked ON tasks (queue) WHERE state = {blocked};
CREATE UNIQUE INDEX requests ON tasks (queue, request_id) WHERE request_id IS NOT NULL;

CREATE TABLE paused (queue TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;

CREATE TABLE duties (
    name          TEXT PRIMARY KEY,
    owner         TEXT NOT NULL,
    epoch         INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
    worker_id     TEXT PRIMARY KEY,
    record        BLOB NOT NULL,
    started_at_ms INTEGER NOT NULL,
    seen_at_ms    INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE discards (
    seq             INTEGER PRIMARY KEY,
    task_id         TEXT NOT NULL,
    type            TEXT NOT NULL,
    queue           TEXT NOT NULL,
    payload         BLOB NOT NULL,
    reason          TEXT NOT NULL,
    error           TEXT NOT NULL,
    discarded_at_ms INTEGER NOT NULL
) STRICT;
