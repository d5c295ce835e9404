-- What is known of each task but its history; and the time.

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
JOIN lanes l ON l.lane = t.lane
LEFT JOIN ready r ON r.lane = t.lane AND r.rank = t.rank AND r.task_id = t.task_id
LEFT JOIN claims c ON c.task_id = t.task_id
LEFT JOIN scheduled s ON s.task_id = t.task_id
LEFT JOIN finished f ON f.task_id = t.task_id;

-- When a task must have begun, NULL if it has no such deadline.
CREATE OR REPLACE FUNCTION deadline(created_at bigint, policy text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT created_at + substring(policy FROM '"expires_ms":([0-9]+)')::bigint
$$;

-- The server's time in ms, or the one that a test hands in.
CREATE OR REPLACE FUNCTION time_ms(given bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce(given, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
END $$;

CREATE OR REPLACE FUNCTION upkeep_epoch() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce((SELECT epoch FROM duties WHERE name = {upkeep_duty}), 0);
END $$;

-- The same, and nobody else becomes the owner before this transaction has ended.
CREATE OR REPLACE FUNCTION held_epoch() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    current bigint;
BEGIN
    SELECT epoch INTO current FROM duties WHERE name = {upkeep_duty} FOR SHARE;
    RETURN coalesce(current, 0);
END $$;

-- The version of the partition map, if it is newer than the caller's.
CREATE OR REPLACE FUNCTION newer_map(known bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT version FROM partition_map WHERE version > known);
END $$;
