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
    room                BLOB,
    -- How long the task is kept once it has ended (NULL: the default), and the time to delete it.
    result_ttl_ms       INTEGER,
    dead_letter_ttl_ms  INTEGER,
    delete_at_ms        INTEGER,
    -- A lease that lies further ahead than this is one from a clock that was set back since.
    lease_ms            INTEGER
) STRICT;

-- Types stand before ranks: tasks of a type that no worker knows are stepped over, not scanned.
CREATE INDEX ready ON tasks (queue, type, rank, seq, priority) WHERE state = {ready};
CREATE INDEX due ON tasks (run_at_ms, state, queue) WHERE state IN ({scheduled}, {retry_pending});
-- No lease in it: a heartbeat changes no index.
CREATE INDEX claimed ON tasks (claim_id) WHERE state = {claimed};
-- Not `state IN (…)`: SQLite would build that list anew for every row that changes, at half of the claim rate.
CREATE INDEX finished ON tasks (state, delete_at_ms, queue) WHERE delete_at_ms IS NOT NULL;
CREATE INDEX blocked ON tasks (queue) WHERE state = {blocked};
CREATE UNIQUE INDEX requests ON tasks (queue, request_id) WHERE request_id IS NOT NULL;

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

-- When tasks must have begun: only those that have such a deadline are here, and only until it has passed.
CREATE TABLE deadlines (
    seq           INTEGER PRIMARY KEY,
    expires_at_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX deadlines_by_time ON deadlines (expires_at_ms);

-- What is not a task: stores/documents.py lists the kinds.
CREATE TABLE documents (
    id            INTEGER PRIMARY KEY,
    kind          TEXT NOT NULL,
    name          TEXT NOT NULL,
    version       INTEGER NOT NULL,
    value         BLOB NOT NULL,
    due_at_ms     INTEGER,
    expires_at_ms INTEGER,
    written_at_ms INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX documents_by_name ON documents (kind, name);
CREATE INDEX documents_by_due ON documents (kind, due_at_ms, name) WHERE due_at_ms IS NOT NULL;
CREATE INDEX documents_by_expiry ON documents (expires_at_ms) WHERE expires_at_ms IS NOT NULL;
-- The newest first, and pruned by age.
CREATE INDEX discards ON documents (written_at_ms) WHERE kind = 'discard';
-- Compared with every call: one small page, however many documents there are.
CREATE INDEX map_version ON documents (version) WHERE kind = 'map';

-- The documents of kind `queue`, as enqueue and reserve read them; a queue with the defaults has no row.
CREATE TABLE queues (
    queue   TEXT PRIMARY KEY,
    paused  INTEGER NOT NULL,
    step_ms INTEGER NOT NULL                            -- what a level of priority is worth
) STRICT, WITHOUT ROWID;

CREATE TABLE leaders (
    name          TEXT PRIMARY KEY,
    owner         TEXT NOT NULL,
    epoch         INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    -- A leadership that lies further ahead than this is one from a clock that was set back since.
    ttl_ms        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
    worker_id     TEXT PRIMARY KEY,
    record        BLOB NOT NULL,
    started_at_ms INTEGER NOT NULL,
    seen_at_ms    INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
