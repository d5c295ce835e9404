-- Maintenance: what must happen without a call that asks for it.

-- The time from which on rows may have come to light since the last look: rows carry the time at which they were written, or a
-- later one, and are seen when their transaction ends. So that is the time of the last look, or the beginning of the oldest
-- transaction that was under way then and has ended since. What is still under way is waited for. Floors go back to that time.
CREATE OR REPLACE FUNCTION look_back(now_ms bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    h horizon;
    sight pg_snapshot := pg_current_snapshot();
    came_from bigint;
BEGIN
    SELECT * INTO h FROM horizon FOR UPDATE;
    SELECT min(u.since) INTO came_from FROM unnest(h.xids, h.since) u (xid, since) WHERE pg_visible_in_snapshot(u.xid, sight);
    -- A clock that was set back makes rows with times that have been looked at before: then all is looked at.
    came_from := CASE WHEN now_ms < h.looked_at THEN 0 ELSE least(came_from, h.looked_at) - {look_back_ms} END;
    IF now_ms < h.looked_at - {look_back_ms} THEN
        -- And leases that were renewed by it end as if they were given by the clock that is right. Locked by id, as everywhere.
        WITH ahead AS MATERIALIZED (
            SELECT c.task_id FROM claims c WHERE c.expires_at > h.looked_at ORDER BY c.task_id FOR UPDATE
        ), moved AS (
            UPDATE claims c SET expires_at = c.expires_at - (h.looked_at - now_ms)
            WHERE c.task_id = ANY (ARRAY(SELECT a.task_id FROM ahead a))
            RETURNING c.claim_id, c.expires_at
        )
        INSERT INTO leases (look_at, claim_id) SELECT min(m.expires_at), m.claim_id FROM moved m GROUP BY m.claim_id;
    END IF;
    UPDATE horizon SET
        looked_at = now_ms,
        xids = ARRAY(SELECT x FROM pg_snapshot_xip(sight) x ORDER BY x),
        since = ARRAY(
            SELECT coalesce(h.since[array_position(h.xids, x)], h.looked_at) FROM pg_snapshot_xip(sight) x ORDER BY x),
        due_from = least(due_from, came_from), starts_from = least(starts_from, came_from),
        look_from = least(look_from, came_from), delete_from = least(delete_from, came_from);
    RETURN came_from;
END $$;

-- Tasks below the floor of their lane: recorded by transactions that ended later than others that began after them. The floor
-- goes back to the first of them.
CREATE OR REPLACE FUNCTION sweep(came_from bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH left_behind AS MATERIALIZED (
        SELECT l.lane, first.rank FROM lanes l
        CROSS JOIN LATERAL (
            SELECT r.rank FROM ready r
            WHERE r.lane = l.lane AND r.rank >= came_from - l.priority * {step_ms}::bigint AND r.rank < l.floor
            ORDER BY r.rank, r.task_id LIMIT 1
        ) first
        WHERE l.floor > came_from - l.priority * {step_ms}::bigint
        ORDER BY l.lane FOR UPDATE OF l
    )
    UPDATE lanes l SET floor = least(l.floor, b.rank), turn = turn + 1 FROM left_behind b WHERE l.lane = ANY (ARRAY[b.lane]);
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
-- and workers notified wherever tasks wait: the worker that was notified last may have crashed before it claimed anything.
-- The epoch is the current one if it is not the caller's, and nothing was done.
CREATE OR REPLACE FUNCTION promote(given_now bigint, given_epoch bigint, most integer, tidies boolean)
RETURNS TABLE (current_epoch bigint, promoted integer, next_due_in_ms bigint, wakeups text[]) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
    first_due bigint;
    next_due bigint;
    numbers integer[];
    ranks bigint[];
BEGIN
    current_epoch := held_epoch();
    IF current_epoch = given_epoch THEN
        IF tidies OR now_ms < (SELECT looked_at - {look_back_ms} FROM horizon) THEN
            PERFORM sweep(look_back(now_ms));
        END IF;
        -- Never ahead of the clock, which may have been set back.
        SELECT least(due_from, now_ms - {floor_lag_ms}) INTO first_due FROM horizon;
        WITH gone AS (
            DELETE FROM scheduled WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM scheduled WHERE due >= first_due AND due <= now_ms ORDER BY due LIMIT most FOR UPDATE SKIP LOCKED))
            RETURNING task_id, due, lane, bytes, attempt, deliveries, result_ttl_ms
        ), come AS (
            INSERT INTO ready (lane, bytes, rank, task_id, attempt, deliveries, result_ttl_ms)
            SELECT g.lane, g.bytes, g.due - l.priority * {step_ms}::bigint, g.task_id, g.attempt, g.deliveries, g.result_ttl_ms
            FROM gone g CROSS JOIN LATERAL (SELECT k.priority FROM lanes k WHERE k.lane = g.lane LIMIT 1) l
            RETURNING lane, rank
        )
        SELECT count(*), array_agg(lane), array_agg(rank) INTO promoted, numbers, ranks FROM come;
        PERFORM turn(numbers, ranks);
        SELECT array_agg(DISTINCT queue) INTO wakeups FROM lanes WHERE lane = ANY (numbers);
        SELECT due INTO next_due FROM scheduled WHERE due >= first_due ORDER BY due LIMIT 1;
        next_due_in_ms := CASE WHEN next_due IS NOT NULL THEN greatest(next_due - now_ms, 0) END;
        next_due := least(next_due, now_ms - {floor_lag_ms});
        IF next_due > first_due + {floor_step_ms} THEN
            UPDATE horizon SET due_from = next_due;
        END IF;
        IF tidies THEN
            PERFORM sum_up();
            SELECT array_agg(q.queue) INTO wakeups
            FROM (SELECT DISTINCT queue FROM lanes) q
            CROSS JOIN LATERAL (
                SELECT FROM (SELECT k.* FROM lanes k WHERE k.queue = q.queue OFFSET 0) l
                CROSS JOIN LATERAL (SELECT FROM ready r WHERE r.lane = l.lane AND r.rank >= l.floor LIMIT 1) first
                LIMIT 1
            ) waiting
            WHERE NOT EXISTS (SELECT FROM queue_settings p WHERE p.queue = q.queue AND p.paused);
        END IF;
    END IF;
    RETURN NEXT;
END $$;

-- Claims whose lease has expired, then tasks that no worker started in time, which have no token; the oldest first.
CREATE OR REPLACE FUNCTION expired(given_now bigint, most integer)
RETURNS TABLE (task_id text, token text, attempt integer, policy text, worker_id text) LANGUAGE plpgsql {path} AS $$
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    RETURN QUERY SELECT e.* FROM expired_claims(now_ms, most) e;
    RETURN QUERY SELECT u.task_id, NULL::text, NULL::integer, NULL::text, NULL::text FROM unstarted(now_ms, most) u;
END $$;

-- What is looked at in vain is looked at again when it may have expired.
CREATE OR REPLACE FUNCTION expired_claims(now_ms bigint, most integer)
RETURNS TABLE (task_id text, token text, attempt integer, policy text, worker_id text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    first_look bigint;
    next_look bigint;
BEGIN
    SELECT least(look_from, now_ms - {floor_lag_ms}) INTO first_look FROM horizon;
    FOR round IN 1..{most_rounds} LOOP
        WITH looks AS MATERIALIZED (
            SELECT k.ctid AS place, k.claim_id FROM leases k WHERE k.look_at >= first_look AND k.look_at <= now_ms
            ORDER BY k.look_at LIMIT most FOR UPDATE SKIP LOCKED
        ), seen AS MATERIALIZED (
            SELECT l.place, l.claim_id, c.expires_at FROM looks l
            CROSS JOIN LATERAL (SELECT min(k.expires_at) AS expires_at FROM claims k WHERE k.claim_id = l.claim_id) c
            WHERE c.expires_at IS NULL OR c.expires_at > now_ms
        ), gone AS (
            DELETE FROM leases k USING seen s WHERE k.ctid = s.place
        )
        INSERT INTO leases (look_at, claim_id) SELECT s.expires_at, s.claim_id FROM seen s WHERE s.expires_at IS NOT NULL;
        SELECT k.look_at INTO next_look FROM leases k WHERE k.look_at >= first_look ORDER BY k.look_at LIMIT 1;
        -- Done when the first to be looked at is not due, or has run out.
        EXIT WHEN next_look IS NULL OR next_look > now_ms OR EXISTS (
            SELECT FROM (
                SELECT k.claim_id FROM leases k WHERE k.look_at >= first_look AND k.look_at <= now_ms ORDER BY k.look_at LIMIT 1
            ) l CROSS JOIN LATERAL (SELECT FROM claims c WHERE c.claim_id = l.claim_id AND c.expires_at <= now_ms LIMIT 1) c);
    END LOOP;
    RETURN QUERY
    SELECT encode(uuid_send(c.task_id), 'hex'), {token}, c.attempt, t.policy, c.worker_id
    FROM (
        SELECT DISTINCT k.claim_id FROM (
            SELECT o.claim_id FROM leases o WHERE o.look_at >= first_look AND o.look_at <= now_ms ORDER BY o.look_at LIMIT most
        ) k
    ) l
    CROSS JOIN LATERAL (SELECT k.* FROM claims k WHERE k.claim_id = l.claim_id AND k.expires_at <= now_ms OFFSET 0) c
    CROSS JOIN LATERAL (SELECT k.policy, k.rank FROM tasks k WHERE k.task_id = c.task_id LIMIT 1) t
    ORDER BY c.expires_at, t.rank, c.task_id LIMIT most;
    next_look := least(next_look, now_ms - {floor_lag_ms});
    IF next_look > first_look + {floor_step_ms} THEN
        UPDATE horizon SET look_from = next_look;
    END IF;
END $$;

-- Deadlines that do not count any more, because the task has begun or ended, are cleared away where they are met.
CREATE OR REPLACE FUNCTION unstarted(now_ms bigint, most integer) RETURNS TABLE (task_id text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    first_start bigint;
    next_start bigint;
BEGIN
    SELECT least(starts_from, now_ms - {floor_lag_ms}) INTO first_start FROM horizon;
    FOR round IN 1..{most_rounds} LOOP
        DELETE FROM deadlines WHERE ctid = ANY (ARRAY(
            SELECT p.place FROM (
                SELECT d.ctid AS place, d.task_id FROM deadlines d WHERE d.starts_by >= first_start AND d.starts_by <= now_ms
                ORDER BY d.starts_by, d.task_id LIMIT most
            ) p
            LEFT JOIN LATERAL (
                SELECT true AS counts FROM standing t
                WHERE t.task_id = p.task_id AND t.deliveries = 0 AND target(t.state, {expire}, false) IS NOT NULL LIMIT 1
            ) s ON true
            WHERE s.counts IS NULL));
        EXIT WHEN NOT FOUND;
    END LOOP;
    RETURN QUERY
    SELECT encode(uuid_send(d.task_id), 'hex') FROM (
        SELECT k.task_id FROM deadlines k WHERE k.starts_by >= first_start AND k.starts_by <= now_ms
        ORDER BY k.starts_by, k.task_id LIMIT most
    ) d;
    SELECT d.starts_by INTO next_start FROM deadlines d WHERE d.starts_by >= first_start ORDER BY d.starts_by LIMIT 1;
    next_start := least(next_start, now_ms - {floor_lag_ms});
    IF next_start > first_start + {floor_step_ms} THEN
        UPDATE horizon SET starts_from = next_start;
    END IF;
END $$;
