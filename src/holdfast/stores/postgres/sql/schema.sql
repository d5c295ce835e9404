-- A task's state is the table in which it stands: exactly one of ready, scheduled, claims and finished.
-- What is written often is narrow, and inserted and deleted only; what is large is written once.

-- One way through the store: a queue, a type and a priority. Within a lane, tasks stand in the order of their ranks.
-- Below `floor` there is nothing to claim, so that a claim never walks over rows that a held snapshot keeps from being
-- cleaned up. `turn` grows whenever a task is put back among those that came before: floors of older turns are void.
CREATE TABLE lanes (
    lane     integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue    text COLLATE "C" NOT NULL,
    type     text COLLATE "C" NOT NULL,
    priority integer NOT NULL,
    floor    bigint NOT NULL DEFAULT {lowest},
    turn     integer NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
-- Not unique: a producer would have to wait for any other transaction, however long, that is the first to use the same lane.
-- Two that begin at once may make two lanes, of which claimers see both, and later producers take the first.
CREATE INDEX lanes_names ON lanes (queue, type, priority);

-- The envelope. Its rank is when the task may run or became ready, less what its priority is worth: core/priority.py.
CREATE TABLE tasks (
    task_id    uuid PRIMARY KEY,
    lane       integer NOT NULL,
    rank       bigint NOT NULL,
    created_at bigint NOT NULL,
    request_id text COLLATE "C",
    headers    text,                                    -- JSON, NULL for none
    policy     text,                                    -- JSON, NULL for the default
    payload    bytea NOT NULL
);

-- `bytes` is the size of its payload, `result_ttl_ms` how long its result is kept, NULL for the default: so that neither a
-- claim nor an ack has to look at the envelope.
CREATE TABLE ready (
    lane          integer NOT NULL,
    bytes         integer NOT NULL,
    rank          bigint NOT NULL,
    task_id       uuid NOT NULL,
    attempt       integer NOT NULL DEFAULT 0,
    deliveries    integer NOT NULL DEFAULT 0,
    result_ttl_ms bigint,
    PRIMARY KEY (lane, rank, task_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE scheduled (
    task_id       uuid PRIMARY KEY,
    due           bigint NOT NULL,
    lane          integer NOT NULL,
    bytes         integer NOT NULL,
    attempt       integer NOT NULL DEFAULT 0,
    deliveries    integer NOT NULL DEFAULT 0,
    is_retry      boolean NOT NULL DEFAULT false,
    result_ttl_ms bigint
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX scheduled_due ON scheduled (due);

-- No index on the lease: a renewal then changes no index, and stays on its page. When to look at it has a table of its own.
CREATE TABLE claims (
    task_id          uuid PRIMARY KEY,
    lane             integer NOT NULL,
    attempt          integer NOT NULL,
    deliveries       integer NOT NULL,
    epoch            bigint NOT NULL,
    claimed_at       bigint NOT NULL,
    expires_at       bigint NOT NULL,
    cancel_requested boolean NOT NULL DEFAULT false,
    claim_id         text COLLATE "C" NOT NULL,
    worker_id        text COLLATE "C" NOT NULL,
    call_id          text,                              -- of the call that claimed it without looking
    result_ttl_ms    bigint,
    reason           text,
    progress         bytea
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX claims_claim_id ON claims (claim_id);

-- When to look whether claims of this claim_id have run out: never later than the first of them does, since leases only
-- grow. A walk over all claims would also be one over the dead ones that a held snapshot keeps.
CREATE TABLE leases (
    look_at  bigint NOT NULL,
    claim_id text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX leases_look_at ON leases (look_at);

-- The claim that succeeded is the last line of the task's history, and stays here.
CREATE TABLE finished (
    task_id     uuid PRIMARY KEY,
    lane        integer NOT NULL,
    attempt     integer NOT NULL,
    deliveries  integer NOT NULL,
    finished_at bigint NOT NULL,
    delete_at   bigint NOT NULL,
    epoch       bigint,
    claimed_at  bigint,
    state       text COLLATE "C" NOT NULL,
    claim_id    text COLLATE "C",
    worker_id   text COLLATE "C",
    reason      text,
    progress    bytea,
    result      bytea
);
CREATE INDEX finished_succeeded_delete_at ON finished (delete_at) WHERE state = {succeeded};
CREATE INDEX finished_failed_delete_at ON finished (delete_at) WHERE state = {failed};
CREATE INDEX finished_cancelled_delete_at ON finished (delete_at) WHERE state = {cancelled};
CREATE INDEX finished_dead_lettered_delete_at ON finished (delete_at) WHERE state = {dead_lettered};

-- How many tasks of a lane have finished; changes are added as rows of their own and put together once a second, so that
-- no two workers wait for each other.
CREATE TABLE tally (
    lane   integer NOT NULL,
    state  text COLLATE "C" NOT NULL,
    number bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- One row for every claim that ended without success.
CREATE TABLE attempts (
    task_id    uuid NOT NULL,
    delivery   integer NOT NULL,
    attempt    integer NOT NULL,
    token      text COLLATE "C" NOT NULL,
    worker_id  text COLLATE "C" NOT NULL,
    event      text COLLATE "C" NOT NULL,
    outcome    text NOT NULL,
    started_at bigint NOT NULL,
    ended_at   bigint NOT NULL,
    error_type text,
    error      text,                                    -- JSON
    PRIMARY KEY (task_id, delivery)
);
CREATE INDEX attempts_error_type ON attempts (error_type, task_id) WHERE error_type IS NOT NULL;

CREATE TABLE requests (
    queue      text COLLATE "C" NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    task_id    uuid NOT NULL,
    PRIMARY KEY (queue, request_id)
);

-- All that is not a task: stores/documents.py says what each kind holds.
CREATE TABLE documents (
    kind       text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    due_at     bigint,                                  -- when something must be done about it, NULL for never
    expires_at bigint,                                  -- when it ceases to exist, NULL for never
    value      bytea NOT NULL,
    PRIMARY KEY (kind, name)
) WITH (fillfactor = 50);
CREATE INDEX documents_due_at ON documents (kind, due_at, name) WHERE due_at IS NOT NULL;
CREATE INDEX documents_expires_at ON documents (expires_at) WHERE expires_at IS NOT NULL;

-- What documents of kind `queue` say, as claims read it: only queues with settings other than the defaults are here.
-- Ranks are by the default step everywhere: within a lane all tasks have one priority, so that a step only shifts lanes
-- against each other, when a claim merges them.
CREATE TABLE queue_settings (
    queue   text COLLATE "C" PRIMARY KEY,
    paused  boolean NOT NULL,
    step_ms bigint                                      -- what a level of priority is worth, NULL for the default
);

CREATE TABLE leaders (
    name       text COLLATE "C" PRIMARY KEY,
    owner      text COLLATE "C" NOT NULL,
    epoch      bigint NOT NULL,
    expires_at bigint NOT NULL,
    ttl        bigint NOT NULL DEFAULT 0                -- for how long it was asked for
) WITH (fillfactor = 50);

CREATE TABLE workers (
    worker_id  text COLLATE "C" PRIMARY KEY,
    record     bytea NOT NULL,
    started_at bigint NOT NULL,
    seen_at    bigint NOT NULL,
    expires_at bigint NOT NULL
) WITH (fillfactor = 50);

-- The documents of kind `discard`.
CREATE TABLE discards (
    number       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id      uuid NOT NULL,
    type         text COLLATE "C" NOT NULL,
    queue        text COLLATE "C" NOT NULL,
    payload      bytea NOT NULL,
    reason       text NOT NULL,
    error        text NOT NULL,
    discarded_at bigint NOT NULL
);
CREATE INDEX discards_task_id ON discards (task_id);

-- One row: from where on there may be something in what is kept in the order of time. A look from the beginning walks
-- over all that was there and is gone, as long as a session holds a snapshot. Rows that come later have later times, save those
-- of transactions that end late: look_back() in functions/maintenance.sql.
CREATE TABLE horizon (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    looked_at   bigint NOT NULL DEFAULT 0,
    xids        xid8[] NOT NULL DEFAULT '{}',           -- transactions that were under way then
    since       bigint[] NOT NULL DEFAULT '{}',         -- and when each of them cannot have begun yet
    due_from    bigint NOT NULL DEFAULT 0,              -- in scheduled
    starts_from bigint NOT NULL DEFAULT 0,              -- in deadlines
    look_from   bigint NOT NULL DEFAULT 0,              -- in leases
    delete_from bigint NOT NULL DEFAULT 0               -- in finished
) WITH (fillfactor = 10);
INSERT INTO horizon DEFAULT VALUES;

-- When tasks must have begun: only those that have such a deadline are here, at the longest until it has passed.
CREATE TABLE deadlines (
    starts_by bigint NOT NULL,
    task_id   uuid NOT NULL,
    PRIMARY KEY (starts_by, task_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- Wake-ups: which process waits for which queue, and which queues were notified while none waited.
-- Neither table is needed after a crash: a lost wake-up costs latency, and processes say again that they wait, every 20 s at the
-- latest. Only the last 30 s count, newest first: rows come and go with every wake-up, and those that are gone stay in
-- the index as long as a session holds a snapshot.

-- A process waits for this wake-up, and is told on this channel. Gone as soon as it was told.
CREATE UNLOGGED TABLE waiting (
    wakeup  text COLLATE "C" NOT NULL,
    since   bigint NOT NULL,
    channel text NOT NULL,
    backend integer NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX waiting_since ON waiting (wakeup, since);

-- A wake-up that no process waited for; the next one to wait for it is woken at once.
CREATE UNLOGGED TABLE unheard (
    wakeup text COLLATE "C" NOT NULL,
    since  bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX unheard_since ON unheard (wakeup, since);

-- New tasks on their way. `shape_of` says which of the shapes (queue, type, priority, wait, run_at) each task has, NULL if
-- all have the first.
CREATE TYPE batch AS (
    ids         uuid[],
    payloads    bytea[],
    headers     text[],
    policies    text[],
    shape_of    integer[],
    queues      text[],
    types       text[],
    priorities  integer[],
    waits       bigint[],
    run_ats     bigint[],
    request_ids text[]
);

-- A new task as enqueue_within() takes it, with base64 for its payload.
CREATE TYPE sent_task AS (
    task_id    uuid,
    type       text,
    queue      text,
    payload    text,
    headers    text,
    policy     text,
    request_id text,
    priority   integer,
    delay_ms   bigint,
    run_at_ms  bigint
);

-- The write of a document: contract.py, DocumentWrite.
CREATE TYPE document_write AS (
    kind        text,
    name        text,
    value       bytea,
    expected    bigint,
    version     bigint,
    due_at      bigint,
    ttl_ms      bigint,
    epoch       bigint,
    task_id     uuid,
    token       text,
    map_version bigint
);

-- How a change travels, and what is said of it; `wakeup` is the one to send.
CREATE TYPE change AS (
    place       integer,
    event       text,
    task_id     uuid,
    token       text,
    expired_only boolean,
    epoch       bigint,
    delay_ms    bigint,
    outcome     text,
    error_type  text,
    error       text,
    reason      text,
    priority    integer
);
CREATE TYPE verdict AS (
    place    integer,
    applied  boolean,
    repeated boolean,
    reason   text,
    state    text,
    wakeup   text
);

-- Changes on their way: see change_all().
CREATE TYPE settlement AS (
    ids           uuid[],
    tokens        text[],
    results       bytea[],
    others        json,
    other_results bytea[]
);

-- A worker's request for tasks: contract.py, Reserve. `call` names a call that claims without looking, to know its repeat.
CREATE TYPE reservation AS (
    claim       text,
    worker      text,
    call        text,
    queues      text[],
    limits      integer[],
    max_tasks   integer,
    max_bytes   bigint,
    lease_ms    bigint,
    types       text[],
    map_version bigint
);

-- From where on lanes may have something to claim, as a claimer remembers it.
CREATE TYPE floors AS (
    lanes integer[],
    turns integer[],
    ranks bigint[],
    ids   uuid[]
);

-- Lanes of one queue that have something to claim: see open_lanes().
CREATE TYPE lane_view AS (
    numbers integer[],
    turns   integer[],
    floors  bigint[],
    tops    bigint[],
    ranks   bigint[],
    ids     uuid[],
    shifts  bigint[]
);

-- What a new claim has from its call.
CREATE TYPE claimer AS (
    claim     text,
    worker    text,
    call      text,
    epoch     bigint,
    given_now bigint,
    lease_ms  bigint
);

-- What a claim got from one lane.
CREATE TYPE share AS (
    lane       integer,
    taken      integer,
    first_rank bigint,
    last_rank  bigint,
    last_id    uuid,
    bytes      bigint
);

-- What a claim got from one queue, and whether the next task did not fit; each task only if there is one lane.
CREATE TYPE taken AS (
    got        share[],
    cut        boolean,
    ids        uuid[],
    attempts   integer[],
    deliveries integer[],
    claimed_at bigint
);
