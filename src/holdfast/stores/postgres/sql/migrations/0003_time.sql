-- oldest code: 2
-- Deadlines to start, steps of priority, schedules, orders to workers; and the functions, as they are from now on.

-- When tasks must have begun: only those that have such a deadline are here, at the longest until it has passed.
CREATE TABLE deadlines (
    starts_by bigint NOT NULL,
    task_id   uuid NOT NULL,
    PRIMARY KEY (starts_by, task_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- What a level of priority is worth, in queues where that is not the usual. Ranks are by the usual step everywhere: within a
-- lane all tasks have one priority, so that a step only shifts lanes against each other, when a claim merges them.
CREATE TABLE steps (
    queue   text COLLATE "C" PRIMARY KEY,
    step_ms bigint NOT NULL
);

CREATE TABLE schedules (
    name     text COLLATE "C" PRIMARY KEY,
    version  bigint NOT NULL,
    next_at  bigint,                                    -- NULL while there is no tick to make
    schedule bytea NOT NULL                             -- JSON
) WITH (fillfactor = 50);
CREATE INDEX schedules_next_at ON schedules (next_at, name);

-- What an operator wants of a worker, for as long as its record lasts.
ALTER TABLE workers ADD COLUMN orders bytea;            -- JSON

ALTER TYPE change ADD ATTRIBUTE priority integer;

-- Parts of other functions that take or give something else now. A call of older code that misses one is made again.
DROP FUNCTION IF EXISTS open_lanes(text, text[], integer[], integer[], bigint[], uuid[]);
DROP FUNCTION IF EXISTS take_from_lane(integer, integer, bigint, uuid, text, text, text, bigint, bigint, bigint);
DROP FUNCTION IF EXISTS take_from_lanes(integer, integer[], bigint[], uuid[], text, text, text, bigint, bigint, bigint);
DROP FUNCTION IF EXISTS leave(uuid, text, integer, bigint);

-- What the code calls. Each is one statement for its caller, and so one round trip and one transaction.
-- include: functions/standing.sql
-- include: functions/enqueue.sql
-- include: functions/changes.sql
-- include: functions/reserve.sql
-- include: functions/extend.sql
-- include: functions/completing.sql
-- include: functions/kept.sql
-- include: functions/upkeep.sql
-- include: functions/prune.sql
-- include: functions/duties.sql
-- include: functions/schedules.sql
-- include: functions/looking.sql
-- include: functions/partitions.sql
-- include: functions/version_2.sql
