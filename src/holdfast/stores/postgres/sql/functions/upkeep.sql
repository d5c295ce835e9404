-- Upkeep: what must happen although nobody asked.

-- Tasks below the floor of their lane: recorded by transactions that ended later than others that began after them, or
-- locked by one that was rolled back. The floor goes back to the first of them.
CREATE OR REPLACE FUNCTION sweep() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH left_behind AS MATERIALIZED (
        SELECT l.lane, first.rank FROM lanes l
        CROSS JOIN LATERAL (SELECT r.rank FROM ready r WHERE r.lane = l.lane ORDER BY r.rank, r.task_id LIMIT 1) first
        WHERE first.rank < l.floor
        ORDER BY l.lane FOR UPDATE OF l
    )
    UPDATE lanes l SET floor = b.rank, turn = turn + 1 FROM left_behind b WHERE l.lane = b.lane;
END $$;

-- The many small changes of the tally become one a lane and state.
CREATE OR REPLACE FUNCTION sum_up() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM tally WHERE ctid = ANY (ARRAY(SELECT ctid FROM tally FOR UPDATE SKIP LOCKED)) RETURNING lane, state, number
    )
    INSERT INTO tally (lane, state, number)
    SELECT lane, state, sum(number) FROM gone GROUP BY lane, state HAVING sum(number) <> 0;
END $$;

-- Due tasks become ready, the longest due first, never one before its time. Now and then floors and tally are put in order,
-- and bells rung wherever tasks wait: whoever heard the last ring may have died of it.
-- The epoch is the current one if it is not the caller's, and nothing was done.
CREATE OR REPLACE FUNCTION promote(given_now bigint, given_epoch bigint, most integer, tidies boolean)
RETURNS TABLE (current_epoch bigint, promoted integer, next_due_in_ms bigint, bells text[]) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
    numbers integer[];
    ranks bigint[];
BEGIN
    current_epoch := held_epoch();
    IF current_epoch = given_epoch THEN
        WITH gone AS (
            DELETE FROM scheduled
            WHERE ctid = ANY (ARRAY(SELECT ctid FROM scheduled WHERE due <= now_ms ORDER BY due LIMIT most FOR UPDATE SKIP LOCKED))
            RETURNING task_id, due, lane, attempt, deliveries
        ), come AS (
            INSERT INTO ready (lane, rank, task_id, attempt, deliveries)
            SELECT g.lane, g.due - l.priority * {step_ms}::bigint, g.task_id, g.attempt, g.deliveries
            FROM gone g JOIN lanes l ON l.lane = g.lane
            RETURNING lane, rank
        )
        SELECT count(*), array_agg(lane), array_agg(rank) INTO promoted, numbers, ranks FROM come;
        PERFORM turn(numbers, ranks);
        SELECT array_agg(DISTINCT queue) INTO bells FROM lanes WHERE lane = ANY (numbers);
        SELECT greatest(due - now_ms, 0) INTO next_due_in_ms FROM scheduled ORDER BY due LIMIT 1;
        IF tidies THEN
            PERFORM sweep();
            PERFORM sum_up();
            SELECT array_agg(DISTINCT l.queue) INTO bells FROM lanes l
            WHERE NOT EXISTS (SELECT FROM paused p WHERE p.queue = l.queue)
              AND EXISTS (SELECT FROM ready r WHERE r.lane = l.lane AND r.rank >= l.floor);
        END IF;
    END IF;
    RETURN NEXT;
END $$;

-- Claims whose lease has run out, the oldest first.
CREATE OR REPLACE FUNCTION expired(given_now bigint, most integer)
RETURNS TABLE (task_id text, token text, attempt integer, policy text, worker_id text) LANGUAGE plpgsql {look} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    RETURN QUERY
    SELECT encode(uuid_send(c.task_id), 'hex'), {token}, c.attempt, t.policy, c.worker_id
    FROM claims c JOIN tasks t ON t.task_id = c.task_id
    WHERE c.expires_at <= now_ms ORDER BY c.expires_at, t.rank, c.task_id LIMIT most;
END $$;

-- Tasks that no worker ever began and that should have begun by now, the oldest deadline first. Deadlines that do not count
-- any more, because the task has begun or ended, are cleared away where they are met.
CREATE OR REPLACE FUNCTION overdue(given_now bigint, most integer) RETURNS TABLE (task_id text) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    LOOP
        DELETE FROM deadlines d USING (
            SELECT p.starts_by, p.task_id FROM deadlines p WHERE p.starts_by <= now_ms ORDER BY p.starts_by, p.task_id LIMIT most
        ) passed
        WHERE d.starts_by = passed.starts_by AND d.task_id = passed.task_id AND NOT EXISTS (
            SELECT FROM standing t WHERE t.task_id = passed.task_id AND t.deliveries = 0 AND target(t.state, {expire}, false) IS NOT NULL
        );
        EXIT WHEN NOT FOUND;
    END LOOP;
    RETURN QUERY
    SELECT encode(uuid_send(d.task_id), 'hex') FROM deadlines d
    WHERE d.starts_by <= now_ms ORDER BY d.starts_by, d.task_id LIMIT most;
END $$;

CREATE OR REPLACE FUNCTION pause(queue_name text, stops boolean) RETURNS void LANGUAGE plpgsql {path} AS $$
BEGIN
    IF stops THEN
        INSERT INTO paused (queue) VALUES (queue_name) ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM paused WHERE queue = queue_name;
    END IF;
END $$;

-- What a level of priority is worth in a queue from now on, for what waits there too.
CREATE OR REPLACE FUNCTION set_step(queue_name text, new_step_ms bigint) RETURNS void LANGUAGE plpgsql {path} AS $$
BEGIN
    IF new_step_ms = {step_ms} THEN
        DELETE FROM steps WHERE queue = queue_name;
    ELSE
        INSERT INTO steps (queue, step_ms) VALUES (queue_name, new_step_ms)
        ON CONFLICT (queue) DO UPDATE SET step_ms = excluded.step_ms;
    END IF;
END $$;
