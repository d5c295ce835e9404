-- What is known of each task but its history; and the time.

-- How statements here are written: the tables are filled and emptied all the time, so their statistics may say anything, and
-- as long as a session holds a snapshot an index has an entry for every row that ever was. A plain join of ids with such a table
-- is sometimes planned as a walk over a whole index. So each row is looked up by itself, which leaves the planner no choice:
-- by a LATERAL subquery that cannot be flattened (LIMIT, OFFSET 0, FOR UPDATE), or, in DELETE and UPDATE, by `= ANY (ARRAY[id])`.

CREATE OR REPLACE VIEW standing AS
SELECT t.task_id, l.queue, l.type, l.priority, t.lane, t.rank, t.rank + l.priority * {step_ms}::bigint AS run_at,
       CASE WHEN r.task_id IS NOT NULL THEN {ready}
            WHEN c.task_id IS NOT NULL THEN {claimed}
            WHEN s.task_id IS NOT NULL THEN CASE WHEN s.is_retry THEN {retry_pending} ELSE {scheduled} END
            ELSE f.state END AS state,
       coalesce(r.attempt, c.attempt, s.attempt, f.attempt) AS attempt,
       coalesce(r.deliveries, c.deliveries, s.deliveries, f.deliveries) AS deliveries,
       t.created_at, f.finished_at, coalesce(c.worker_id, f.worker_id) AS worker_id,
       coalesce(c.claimed_at, f.claimed_at) AS claimed_at, c.expires_at, coalesce(c.cancel_requested, false) AS cancel_requested,
       coalesce(c.progress, f.progress) AS progress, coalesce(c.reason, f.reason) AS reason, t.request_id, t.payload, t.headers,
       t.policy, f.result,
       coalesce(c.epoch, f.epoch) || '.' || coalesce(c.deliveries, f.deliveries) || '.' || coalesce(c.claim_id, f.claim_id)
           AS token
FROM tasks t
CROSS JOIN LATERAL (SELECT k.queue, k.type, k.priority FROM lanes k WHERE k.lane = t.lane LIMIT 1) l
LEFT JOIN LATERAL (
    SELECT k.* FROM ready k WHERE k.lane = t.lane AND k.rank = t.rank AND k.task_id = t.task_id LIMIT 1
) r ON true
LEFT JOIN LATERAL (SELECT k.* FROM claims k WHERE k.task_id = t.task_id LIMIT 1) c ON true
LEFT JOIN LATERAL (SELECT k.* FROM scheduled k WHERE k.task_id = t.task_id LIMIT 1) s ON true
LEFT JOIN LATERAL (SELECT k.* FROM finished k WHERE k.task_id = t.task_id LIMIT 1) f ON true;

-- When a task must have begun, NULL if it has no such deadline.
CREATE OR REPLACE FUNCTION deadline(created_at bigint, policy text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT created_at + substring(policy FROM '"expires_ms":([0-9]{1,15})')::bigint
$$;

-- How long a task with this policy is kept after it succeeded, failed or was cancelled, NULL for the default.
CREATE OR REPLACE FUNCTION result_ttl(policy text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT substring(policy FROM '"result_ttl_ms":([0-9]{1,15})')::bigint
$$;

-- How long it is kept after it has ended in this state.
CREATE OR REPLACE FUNCTION kept_ms(policy text, state text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE state
        WHEN {dead_lettered} THEN coalesce(substring(policy FROM '"dead_letter_ttl_ms":([0-9]{1,15})')::bigint, {dead_letter_ttl_ms})
        ELSE coalesce(result_ttl(policy), {result_ttl_ms})
    END
$$;

-- The server's time in ms, or the one that a test hands in.
CREATE OR REPLACE FUNCTION time_ms(given bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce(given, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
END $$;

CREATE OR REPLACE FUNCTION maintenance_epoch() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce((SELECT epoch FROM leaders WHERE name = {maintenance}), 0);
END $$;

-- The same, and the leader does not change before this transaction has ended.
CREATE OR REPLACE FUNCTION held_epoch() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    current bigint;
BEGIN
    SELECT epoch INTO current FROM leaders WHERE name = {maintenance} FOR SHARE;
    RETURN coalesce(current, 0);
END $$;

-- The version of the partition map, if it is newer than the caller's.
CREATE OR REPLACE FUNCTION newer_map(known bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT d.version FROM documents d WHERE d.kind = {map_kind} AND d.name = '' AND d.version > known);
END $$;
