-- oldest code: 1
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

CREATE TABLE ready (
    lane       integer NOT NULL,
    rank       bigint NOT NULL,
    task_id    uuid NOT NULL,
    attempt    integer NOT NULL DEFAULT 0,
    deliveries integer NOT NULL DEFAULT 0,
    PRIMARY KEY (lane, rank, task_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE scheduled (
    task_id    uuid PRIMARY KEY,
    due        bigint NOT NULL,
    lane       integer NOT NULL,
    attempt    integer NOT NULL DEFAULT 0,
    deliveries integer NOT NULL DEFAULT 0,
    is_retry   boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX scheduled_due ON scheduled (due);

-- No index on the lease: a renewal then changes no index, and stays on its page.
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
    reason           text,
    progress         bytea
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX claims_claim_id ON claims (claim_id);

-- The claim that succeeded is the last line of the task's history, and stays here.
CREATE TABLE finished (
    task_id     uuid PRIMARY KEY,
    lane        integer NOT NULL,
    attempt     integer NOT NULL,
    deliveries  integer NOT NULL,
    finished_at bigint NOT NULL,
    epoch       bigint,
    claimed_at  bigint,
    state       text COLLATE "C" NOT NULL,
    claim_id    text COLLATE "C",
    worker_id   text COLLATE "C",
    reason      text,
    progress    bytea,
    result      bytea
);
CREATE INDEX finished_succeeded_age ON finished (finished_at) WHERE state = {succeeded};
CREATE INDEX finished_failed_age ON finished (finished_at) WHERE state = {failed};
CREATE INDEX finished_cancelled_age ON finished (finished_at) WHERE state = {cancelled};
CREATE INDEX finished_dead_lettered_age ON finished (finished_at) WHERE state = {dead_lettered};

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

CREATE TABLE requests (
    queue      text COLLATE "C" NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    task_id    uuid NOT NULL,
    PRIMARY KEY (queue, request_id)
);

-- What finished steps of tasks gave, under their keys.
CREATE TABLE kept (
    key        text COLLATE "C" PRIMARY KEY,
    expires_at bigint NOT NULL,
    value      bytea NOT NULL
);
CREATE INDEX kept_expires_at ON kept (expires_at);

CREATE TABLE paused (queue text COLLATE "C" PRIMARY KEY);

CREATE TABLE duties (
    name       text COLLATE "C" PRIMARY KEY,
    owner      text COLLATE "C" NOT NULL,
    epoch      bigint NOT NULL,
    expires_at bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE workers (
    worker_id  text COLLATE "C" PRIMARY KEY,
    record     bytea NOT NULL,
    started_at bigint NOT NULL,
    seen_at    bigint NOT NULL,
    expires_at bigint NOT NULL
) WITH (fillfactor = 50);

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

-- One row once the store is divided into partitions.
CREATE TABLE partition_map (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  bigint NOT NULL,
    map      bytea NOT NULL                             -- JSON
);

-- How a change travels, and what is said of it; `bell` is the one to ring.
CREATE TYPE change AS (
    place       integer,
    event       text,
    task_id     uuid,
    token       text,
    lapsed_only boolean,
    epoch       bigint,
    delay_ms    bigint,
    outcome     text,
    error_type  text,
    error       text,
    reason      text
);
CREATE TYPE verdict AS (
    place    integer,
    applied  boolean,
    repeated boolean,
    reason   text,
    state    text,
    bell     text
);

-- What a claim got from one lane.
CREATE TYPE share AS (
    lane       integer,
    taken      integer,
    first_rank bigint,
    last_rank  bigint,
    last_id    uuid
);

-- include: bells.sql
