-- Deletes finished tasks whose time is over, then those that are too many, and expired documents; also old records of discards,
-- silent workers and their orders, lanes without a task.
-- The epoch is the current one if it is not the caller's, and nothing was done.

CREATE OR REPLACE FUNCTION forget(ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM finished WHERE task_id = ANY (ids) RETURNING lane, state
    )
    INSERT INTO tally (lane, state, number) SELECT lane, state, -count(*) FROM gone GROUP BY lane, state;
    DELETE FROM attempts WHERE task_id = ANY (ids);
    WITH gone AS (
        DELETE FROM tasks WHERE task_id = ANY (ids) RETURNING task_id, lane, request_id, deadline(created_at, policy) AS starts_by
    ), named AS MATERIALIZED (
        SELECT g.task_id, g.request_id, l.queue FROM gone g
        CROSS JOIN LATERAL (SELECT k.queue FROM lanes k WHERE k.lane = g.lane LIMIT 1) l
        WHERE g.request_id IS NOT NULL
    ), free AS (
        DELETE FROM requests q USING named n
        WHERE q.queue = ANY (ARRAY[n.queue]) AND q.request_id = ANY (ARRAY[n.request_id]) AND q.task_id = n.task_id
    )
    DELETE FROM deadlines d USING gone g
    WHERE d.starts_by = ANY (ARRAY[g.starts_by]) AND d.task_id = ANY (ARRAY[g.task_id]);
END $$;

-- Deletes lanes of which no task is left, and wake-ups of queues that have none, while no call is about to use one.
CREATE OR REPLACE FUNCTION forget_lanes(most integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    numbers integer[];
    first_lane bigint := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock('lanes'::regclass::integer, 0) THEN
        RETURN;
    END IF;
    -- Of more lanes than one call looks at, it begins anywhere, so that each gets its turn whatever is in the others.
    IF (SELECT count(*) FROM (SELECT FROM lanes LIMIT most + 1) known) > most THEN
        SELECT min(lane) + floor(random() * (max(lane) - min(lane) + most)) - most INTO first_lane FROM lanes;
    END IF;
    -- Most lanes have finished tasks; the rest of the question is asked only where there are none.
    numbers := ARRAY(
        SELECT l.lane FROM lanes l
        WHERE l.lane >= first_lane
          AND l.lane NOT IN (SELECT t.lane FROM tally t GROUP BY t.lane HAVING sum(t.number) <> 0)
        ORDER BY l.lane LIMIT most);
    -- All in one statement, since a task that moves meanwhile is seen either before or after its move, never in between.
    DELETE FROM lanes WHERE lane = ANY (ARRAY(
        SELECT u.lane FROM unnest(numbers) u (lane)
        LEFT JOIN LATERAL (SELECT true AS waits FROM ready r WHERE r.lane = u.lane LIMIT 1) r ON true
        WHERE r.waits IS NULL
          AND u.lane NOT IN (SELECT t.lane FROM tally t GROUP BY t.lane HAVING sum(t.number) <> 0)
          AND u.lane NOT IN (SELECT s.lane FROM scheduled s)
          AND u.lane NOT IN (
              SELECT c.lane FROM leases l CROSS JOIN LATERAL (SELECT k.lane FROM claims k WHERE k.claim_id = l.claim_id OFFSET 0) c)));
    IF FOUND THEN
        DELETE FROM unheard WHERE wakeup <> {maintenance_wakeup} AND wakeup NOT IN (SELECT l.queue FROM lanes l);
    END IF;
END $$;

-- Finished tasks in this state that are to be deleted between these times. The state is written into the statement: each has an
-- index of its own, which a parameter would not find.
CREATE OR REPLACE FUNCTION first_to_go(state_name text, from_ms bigint, until_ms bigint, most bigint) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    found uuid[];
BEGIN
    EXECUTE format(
        'SELECT coalesce(array_agg(task_id), ''{}'') FROM (
            SELECT task_id FROM finished WHERE state = %L AND delete_at >= $1 AND delete_at <= $2
            ORDER BY delete_at LIMIT $3 FOR UPDATE SKIP LOCKED
        ) old', state_name) INTO found USING from_ms, until_ms, most;
    RETURN found;
END $$;

-- Deletes expired documents, and orders of workers that are not on the list any more; how many of the first.
CREATE OR REPLACE FUNCTION forget_documents(now_ms bigint, most integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    gone integer;
BEGIN
    DELETE FROM documents WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM documents WHERE expires_at <= now_ms ORDER BY expires_at LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS gone = ROW_COUNT;
    DELETE FROM documents d WHERE d.kind = {orders_kind} AND NOT EXISTS (SELECT FROM workers w WHERE w.worker_id = d.name);
    RETURN gone;
END $$;

CREATE OR REPLACE FUNCTION prune(
    given_now bigint, given_epoch bigint, states text[], keep bigint, discards_ms bigint, silent_ms bigint, most integer
) RETURNS TABLE (current_epoch bigint, pruned integer) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
    ids uuid[] := '{}';
    more uuid[];
    surplus bigint;
    first_delete bigint;
    next_delete bigint;
    each_delete bigint;
BEGIN
    pruned := 0;
    current_epoch := held_epoch();
    IF current_epoch <> given_epoch THEN
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT least(delete_from, now_ms - {floor_lag_ms}) INTO first_delete FROM horizon;
    FOR n IN 1..cardinality(states) LOOP
        more := first_to_go(states[n], first_delete, now_ms - 1, most - cardinality(ids));
        ids := ids || more;
    END LOOP;
    IF cardinality(ids) = 0 THEN
        FOR n IN 1..cardinality(states) LOOP
            SELECT coalesce(sum(number), 0) - keep INTO surplus FROM tally WHERE state = states[n];
            CONTINUE WHEN surplus <= 0;
            more := first_to_go(states[n], first_delete, {latest_ms}, least(surplus, most - cardinality(ids)));
            ids := ids || more;
        END LOOP;
    END IF;
    pruned := cardinality(ids);
    IF pruned > 0 THEN
        PERFORM forget(ids);
    END IF;
    DELETE FROM workers WHERE expires_at <= now_ms - silent_ms;
    pruned := pruned + forget_documents(now_ms, most - pruned);
    DELETE FROM discards WHERE number IN (
        SELECT number FROM discards WHERE discarded_at <= now_ms - discards_ms ORDER BY number LIMIT most);
    FOR n IN 1..cardinality(states) LOOP
        EXECUTE format('SELECT delete_at FROM finished WHERE state = %L AND delete_at >= $1 ORDER BY delete_at LIMIT 1', states[n])
        INTO each_delete USING first_delete;
        next_delete := least(next_delete, each_delete);
    END LOOP;
    next_delete := least(next_delete, now_ms - {floor_lag_ms});
    IF next_delete > first_delete + {floor_step_ms} THEN
        UPDATE horizon SET delete_from = next_delete;
    END IF;
    IF pruned < most THEN
        PERFORM forget_wakeups();
        PERFORM forget_lanes({forget_lanes});
    END IF;
    RETURN NEXT;
END $$;
