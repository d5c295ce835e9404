-- Claims ready tasks, lowest rank first, and settles the last batch before it.

-- Lanes of a queue that have something to claim, and from where on: a floor that the claimer remembers counts if nothing
-- was put back into the lane since, else the lane's own. Up to `tops` floors may be raised: what is recorded right now may end
-- later than what was recorded after it. Shifts are what to add to the ranks of each to compare them, where a level of priority
-- has a worth of its own (NULL for the default).
CREATE OR REPLACE FUNCTION open_lanes(
    queue_name text, queue_step_ms bigint, known_types text[], floor_lanes integer[], floor_turns integer[], floor_ranks bigint[],
    floor_ids uuid[], now_ms bigint
) RETURNS lane_view LANGUAGE plpgsql AS $$
DECLARE
    seen lane_view;
BEGIN
    SELECT array_agg(l.lane), array_agg(l.turn), array_agg(l.floor), array_agg(now_ms - {floor_lag_ms} - l.priority * {step_ms}::bigint),
           array_agg(coalesce(f.rank, l.floor)), array_agg(coalesce(f.id, {lowest_id})),
           array_agg(coalesce(l.priority * ({step_ms} - queue_step_ms), 0))
    INTO seen
    FROM (
        SELECT k.* FROM lanes k
        WHERE k.queue = queue_name
          AND k.type = ANY (coalesce(known_types, ARRAY(SELECT DISTINCT o.type FROM lanes o WHERE o.queue = queue_name)))
        OFFSET 0
    ) l
    LEFT JOIN unnest(floor_lanes, floor_turns, floor_ranks, floor_ids) f (lane, turn, rank, id)
        ON f.lane = l.lane AND f.turn = l.turn AND f.rank >= l.floor
    CROSS JOIN LATERAL (
        SELECT FROM ready r
        WHERE r.lane = l.lane AND (r.rank, r.task_id) >= (coalesce(f.rank, l.floor), coalesce(f.id, {lowest_id}))
        LIMIT 1
    ) first;
    RETURN seen;
END $$;

-- From one lane: whatever others are about to claim is stepped over. The time of the claim is read in the statement that
-- makes it: one from the beginning of the call may be earlier than the promotion or the release of what is seen by now.
-- `cut` says that the next task is too large for what is left of `room` bytes; the first of an answer never is.
CREATE OR REPLACE FUNCTION take_from_lane(
    wanted integer, room bigint, is_first boolean, lane_number integer, from_rank bigint, from_id uuid, c claimer
) RETURNS taken LANGUAGE plpgsql AS $$
DECLARE
    took taken;
    part share;
    locked_number integer;
BEGIN
    -- Mostly all of it fits; only if it does not, `few` has those that do.
    WITH moment AS MATERIALIZED (SELECT time_ms(c.given_now) AS now_ms), locked AS MATERIALIZED (
        SELECT r.ctid AS place, r.rank, r.task_id, r.attempt, r.deliveries, r.bytes, r.result_ttl_ms FROM ready r
        WHERE r.lane = lane_number AND (r.rank, r.task_id) >= (from_rank, from_id)
        ORDER BY r.rank, r.task_id LIMIT wanted
        FOR UPDATE SKIP LOCKED
    ), fitting AS MATERIALIZED (
        SELECT CASE WHEN sum(l.bytes) > room THEN ARRAY(
            SELECT s.place FROM (
                SELECT o.place, sum(o.bytes) OVER before AS total, row_number() OVER before AS n FROM locked o
                WINDOW before AS (ROWS UNBOUNDED PRECEDING)
            ) s WHERE s.total <= room OR is_first AND s.n = 1
        ) END AS few FROM locked l
    ), gone AS (
        DELETE FROM ready r USING locked p
        WHERE r.ctid = p.place AND ((SELECT few FROM fitting) IS NULL OR p.place = ANY ((SELECT few FROM fitting)::tid[]))
    ), held AS (
        INSERT INTO claims (task_id, lane, attempt, deliveries, epoch, claimed_at, expires_at, claim_id, worker_id, call_id,
                            result_ttl_ms)
        SELECT p.task_id, lane_number, p.attempt + 1, p.deliveries + 1, c.epoch, m.now_ms, m.now_ms + c.lease_ms, c.claim, c.worker,
               c.call, p.result_ttl_ms
        FROM locked p, moment m
        WHERE (SELECT few FROM fitting) IS NULL OR p.place = ANY ((SELECT few FROM fitting)::tid[])
    )
    SELECT array_agg(p.task_id), array_agg(p.attempt + 1), array_agg(p.deliveries + 1), min(p.rank), max(p.rank), sum(p.bytes),
           (SELECT now_ms FROM moment), (SELECT count(*) FROM locked)
    INTO took.ids, took.attempts, took.deliveries, part.first_rank, part.last_rank, part.bytes, took.claimed_at, locked_number
    FROM locked p
    WHERE (SELECT few FROM fitting) IS NULL OR p.place = ANY ((SELECT few FROM fitting)::tid[]);
    part.lane := lane_number;
    part.taken := coalesce(cardinality(took.ids), 0);
    part.last_id := took.ids[part.taken];
    took.got := ARRAY[part];
    took.cut := part.taken < locked_number;
    RETURN took;
END $$;

-- From several lanes, merged by rank as the queue's step has it. The first of all lanes together are looked up first and locked
-- then, so that no more is locked than is claimed; only if others have locked some of these, each lane is gone through with locks.
CREATE OR REPLACE FUNCTION take_from_lanes(wanted integer, room bigint, is_first boolean, seen lane_view, c claimer) RETURNS taken
LANGUAGE plpgsql AS $$
DECLARE
    took taken;
    more taken;
    number integer;
    used bigint;
    fitting_number integer;
BEGIN
    SELECT t.got, t.cut, t.fitting INTO took.got, took.cut, fitting_number FROM take_unlocked(wanted, room, is_first, seen, c) t;
    SELECT coalesce(sum(p.taken), 0), coalesce(sum(p.bytes), 0) INTO number, used FROM unnest(took.got) p;
    IF number < fitting_number THEN
        more := take_locked(wanted - number, room - used, is_first AND number = 0, seen, c);
        took.got := took.got || more.got;
        took.cut := more.cut;
    END IF;
    RETURN took;
END $$;

-- Claims the first of all these lanes together, save those that others have locked; `fitting` is how many it would have been.
CREATE OR REPLACE FUNCTION take_unlocked(
    wanted integer, room bigint, is_first boolean, seen lane_view, c claimer, OUT got share[], OUT cut boolean, OUT fitting integer
) LANGUAGE plpgsql AS $$
BEGIN
    WITH moment AS MATERIALIZED (SELECT time_ms(c.given_now) AS now_ms), candidates AS MATERIALIZED (
        SELECT r.place, r.bytes FROM unnest(seen.numbers, seen.ranks, seen.ids, seen.shifts) f (lane, rank, id, shift)
        CROSS JOIN LATERAL (
            SELECT ctid AS place, ready.rank, ready.task_id, ready.bytes FROM ready
            WHERE ready.lane = f.lane AND (ready.rank, ready.task_id) >= (f.rank, f.id)
            ORDER BY ready.rank, ready.task_id LIMIT wanted
        ) r ORDER BY r.rank + f.shift, r.task_id LIMIT wanted
    ), weighed AS MATERIALIZED (
        SELECT k.place, k.total <= room OR is_first AND k.n = 1 AS fits FROM (
            SELECT k.*, sum(k.bytes) OVER before AS total, row_number() OVER before AS n FROM candidates k
            WINDOW before AS (ROWS UNBOUNDED PRECEDING)
        ) k
    ), picked AS MATERIALIZED (
        SELECT r.ctid AS place, r.* FROM weighed k JOIN ready r ON r.ctid = k.place WHERE k.fits FOR UPDATE OF r SKIP LOCKED
    ), gone AS (
        DELETE FROM ready r USING picked p WHERE r.ctid = p.place
    ), held AS (
        INSERT INTO claims (task_id, lane, attempt, deliveries, epoch, claimed_at, expires_at, claim_id, worker_id, call_id,
                            result_ttl_ms)
        SELECT p.task_id, p.lane, p.attempt + 1, p.deliveries + 1, c.epoch, m.now_ms, m.now_ms + c.lease_ms, c.claim, c.worker, c.call,
               p.result_ttl_ms
        FROM picked p, moment m
    ), parts AS (
        SELECT p.lane, count(*)::integer AS number, min(p.rank) AS first_rank, max(p.rank) AS last_rank,
               (array_agg(p.task_id ORDER BY p.rank DESC, p.task_id DESC))[1] AS last_id, sum(p.bytes) AS bytes
        FROM picked p GROUP BY p.lane
    )
    SELECT coalesce(array_agg(ROW(p.*)::share), '{}'), EXISTS (SELECT FROM weighed WHERE NOT fits),
           (SELECT count(*) FROM weighed WHERE fits)
    INTO got, cut, fitting FROM parts p;
END $$;

-- Locks up to `wanted` of each of these lanes, and claims the first of them all together.
CREATE OR REPLACE FUNCTION take_locked(wanted integer, room bigint, is_first boolean, seen lane_view, c claimer) RETURNS taken
LANGUAGE plpgsql AS $$
DECLARE
    took taken;
BEGIN
    WITH moment AS MATERIALIZED (SELECT time_ms(c.given_now) AS now_ms), locked AS MATERIALIZED (
        SELECT r.*, f.shift FROM unnest(seen.numbers, seen.ranks, seen.ids, seen.shifts) f (lane, rank, id, shift)
        CROSS JOIN LATERAL (
            SELECT ctid AS place, ready.* FROM ready
            WHERE ready.lane = f.lane AND (ready.rank, ready.task_id) >= (f.rank, f.id)
            ORDER BY ready.rank, ready.task_id LIMIT wanted
            FOR UPDATE SKIP LOCKED
        ) r
    ), weighed AS MATERIALIZED (
        SELECT l.*, l.total <= room OR is_first AND l.n = 1 AS fits FROM (
            SELECT l.*, sum(l.bytes) OVER before AS total, row_number() OVER before AS n
            FROM (SELECT * FROM locked ORDER BY rank + shift, task_id LIMIT wanted) l
            WINDOW before AS (ROWS UNBOUNDED PRECEDING)
        ) l
    ), picked AS MATERIALIZED (
        SELECT * FROM weighed WHERE fits
    ), gone AS (
        DELETE FROM ready r USING picked p WHERE r.ctid = p.place
    ), held AS (
        INSERT INTO claims (task_id, lane, attempt, deliveries, epoch, claimed_at, expires_at, claim_id, worker_id, call_id,
                            result_ttl_ms)
        SELECT p.task_id, p.lane, p.attempt + 1, p.deliveries + 1, c.epoch, m.now_ms, m.now_ms + c.lease_ms, c.claim, c.worker, c.call,
               p.result_ttl_ms
        FROM picked p, moment m
    ), parts AS (
        SELECT p.lane, count(*)::integer AS number, min(p.rank) AS first_rank, max(p.rank) AS last_rank,
               (array_agg(p.task_id ORDER BY p.rank DESC, p.task_id DESC))[1] AS last_id, sum(p.bytes) AS bytes
        FROM picked p GROUP BY p.lane
    )
    SELECT coalesce(array_agg(ROW(p.*)::share), '{}'), EXISTS (SELECT FROM weighed WHERE NOT fits) INTO took.got, took.cut FROM parts p;
    RETURN took;
END $$;

-- Raises the floor that new claimers begin from, but not over what is still there: what another call is about to claim stays if
-- that call is rolled back. A call that is at it already is not waited for.
CREATE OR REPLACE FUNCTION raise_floor(lane_number integer, at_turn integer, from_rank bigint, to_rank bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    reached bigint;
BEGIN
    SELECT r.rank INTO reached FROM ready r WHERE r.lane = lane_number AND r.rank >= from_rank AND r.rank < to_rank
    ORDER BY r.rank, r.task_id LIMIT 1;
    reached := coalesce(reached, to_rank);
    IF reached > from_rank + {floor_step_ms} THEN
        UPDATE lanes SET floor = reached WHERE lane = (
            SELECT k.lane FROM lanes k WHERE k.lane = lane_number AND k.turn = at_turn AND k.floor < reached FOR UPDATE SKIP LOCKED);
    END IF;
END $$;

-- What a level of priority is worth in each of these queues, NULL for the default.
CREATE OR REPLACE FUNCTION steps_of(queues text[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT array_agg(s.step_ms ORDER BY q.n) FROM unnest(queues) WITH ORDINALITY q (queue, n)
            LEFT JOIN LATERAL (SELECT k.step_ms FROM queue_settings k WHERE k.queue = q.queue LIMIT 1) s ON true);
END $$;

-- Claims up to `max_tasks` and `max_bytes`: up to its limit from each queue, then again without limits. Answers with their number,
-- `alone` with the tasks if all came from one lane, the floors with the places of those that are new, whether a task stayed behind
-- because it did not fit, and the queues in which something is left when all that was asked for is claimed: then the next worker
-- should look.
CREATE OR REPLACE FUNCTION claim_tasks(
    r reservation, INOUT known floors, c claimer, now_ms bigint,
    OUT number integer, OUT cut boolean, OUT alone taken, OUT learnt integer[], OUT wakeups text[]
) LANGUAGE plpgsql AS $$
DECLARE
    floor_lanes integer[] := known.lanes; floor_turns integer[] := known.turns;
    floor_ranks bigint[] := known.ranks; floor_ids uuid[] := known.ids;
    closed text[]; step_of bigint[];
    room bigint := r.max_bytes;
    full_queues text[] := '{}';
    wanted integer;
    seen lane_view;
    took taken;
    part share;
    place integer; lane_turn integer;
    top bigint;
BEGIN
    SELECT array_agg(q.queue) FILTER (WHERE q.paused), CASE WHEN count(q.step_ms) > 0 THEN steps_of(r.queues) END, 0, false
    INTO closed, step_of, number, cut FROM queue_settings q;
    FOR round IN 1..2 LOOP
        FOR n IN 1..cardinality(r.queues) LOOP
            wanted := CASE round WHEN 1 THEN least(r.limits[n], r.max_tasks - number) ELSE r.max_tasks - number END;
            CONTINUE WHEN cut OR wanted <= 0 OR r.queues[n] = ANY (closed) OR (round = 2 AND r.limits[n] >= r.max_tasks);
            seen := open_lanes(r.queues[n], step_of[n], r.types, floor_lanes, floor_turns, floor_ranks, floor_ids, now_ms);
            CONTINUE WHEN seen.numbers IS NULL;
            IF cardinality(seen.numbers) = 1 THEN
                took := take_from_lane(wanted, room, number = 0, seen.numbers[1], seen.ranks[1], seen.ids[1], c);
            ELSE
                took := take_from_lanes(wanted, room, number = 0, seen, c);
            END IF;
            alone := CASE WHEN number = 0 THEN took END;
            cut := took.cut;
            FOREACH part IN ARRAY took.got LOOP
                CONTINUE WHEN part.taken = 0;
                place := array_position(seen.numbers, part.lane);
                top := least(part.last_rank, seen.tops[place]);
                IF top > seen.floors[place] + {floor_step_ms} THEN
                    PERFORM raise_floor(part.lane, seen.turns[place], seen.floors[place], top);
                END IF;
                lane_turn := seen.turns[place];
                place := coalesce(array_position(floor_lanes, part.lane), cardinality(floor_lanes) + 1);
                learnt := learnt || place;
                floor_lanes[place] := part.lane;
                floor_turns[place] := lane_turn;
                floor_ranks[place] := part.last_rank;
                floor_ids[place] := part.last_id;
                wanted := wanted - part.taken;
                number := number + part.taken;
                room := room - part.bytes;
            END LOOP;
            full_queues := CASE WHEN wanted = 0 OR cut THEN full_queues || r.queues[n] ELSE full_queues END;
        END LOOP;
    END LOOP;
    known := CASE WHEN number > 0 THEN (floor_lanes, floor_turns, floor_ranks, floor_ids)::floors END;
    wakeups := CASE WHEN number >= r.max_tasks OR cut THEN ARRAY(
        SELECT q.name FROM unnest(full_queues) q (name) WHERE has_ready(q.name, floor_lanes, floor_turns, floor_ranks, floor_ids)) END;
END $$;

-- Whether a queue has something to claim beyond these floors, of whatever type.
CREATE OR REPLACE FUNCTION has_ready(
    queue_name text, floor_lanes integer[], floor_turns integer[], floor_ranks bigint[], floor_ids uuid[]
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM (SELECT k.* FROM lanes k WHERE k.queue = queue_name OFFSET 0) l
    LEFT JOIN unnest(floor_lanes, floor_turns, floor_ranks, floor_ids) f (lane, turn, rank, id)
        ON f.lane = l.lane AND f.turn = l.turn AND f.rank >= l.floor
    CROSS JOIN LATERAL (
        SELECT FROM ready r
        WHERE r.lane = l.lane AND (r.rank, r.task_id) >= (coalesce(f.rank, l.floor), coalesce(f.id, {lowest_id}))
        LIMIT 1
    ) first
    LIMIT 1;
    RETURN FOUND;
END $$;

-- The tasks that a claim_id holds, in the order in which to start them.
CREATE OR REPLACE FUNCTION tasks_of_claim(claim text, queues text[]) RETURNS TABLE (
    kind text, lane integer, task_id text, attempt integer, deliveries integer, number bigint, created_at bigint, claimed_at bigint,
    payload bytea, headers text, policy text, rank bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    step_of bigint[] := steps_of(queues);
BEGIN
    RETURN QUERY
    SELECT 'task', c.lane, encode(uuid_send(c.task_id), 'hex'), c.attempt, c.deliveries, c.epoch, t.created_at, c.claimed_at,
           t.payload, t.headers, t.policy, t.rank
    FROM (SELECT k.* FROM claims k WHERE k.claim_id = claim OFFSET 0) c
    CROSS JOIN LATERAL (SELECT k.* FROM tasks k WHERE k.task_id = c.task_id LIMIT 1) t
    CROSS JOIN LATERAL (SELECT k.queue, k.priority FROM lanes k WHERE k.lane = c.lane LIMIT 1) l
    ORDER BY array_position(queues, l.queue),
             t.rank + coalesce(l.priority * ({step_ms} - step_of[array_position(queues, l.queue)]), 0), t.task_id;
END $$;

-- Settles (see changes.sql), then claims. The answer's rows, by their kind:
--   stale_map  the map is newer (number is its version), nothing was done
--   verdict    of a change: attempt is its place, deliveries 2 for applied + 1 for repeated, headers the reason, policy the state
--   floor      to be remembered: lane, deliveries is the turn, number the rank, task_id; attempt is 1 if a task did not fit
--   wakeup     to be sent (headers)
--   task       claimed; number is the epoch, rank its place in the lane, from which follows when it became ready
CREATE OR REPLACE FUNCTION hand_over(given_now bigint, s settlement, r reservation, known floors)
RETURNS TABLE (kind text, lane integer, task_id text, attempt integer, deliveries integer, number bigint, created_at bigint,
               claimed_at bigint, payload bytea, headers text, policy text, rank bigint) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
    c claimer := (r.claim, r.worker, r.call, maintenance_epoch(), given_now, r.lease_ms);
    took record;
    alone taken;
    place integer;
    holds boolean;
BEGIN
    number := newer_map(r.map_version);
    IF number IS NOT NULL THEN
        kind := 'stale_map';
        RETURN NEXT;
        RETURN;
    END IF;
    IF cardinality(s.ids) > 0 OR s.others IS NOT NULL THEN
        RETURN QUERY SELECT 'verdict', NULL::integer, NULL::text, v.place, v.applied::integer * 2 + v.repeated::integer, NULL::bigint,
                            NULL::bigint, NULL::bigint, NULL::bytea, v.reason, v.state, NULL::bigint
        FROM change_all(s.ids, s.tokens, s.results, s.others, s.other_results, now_ms) v;
    END IF;
    IF r.max_tasks <= 0 OR cardinality(r.queues) = 0 THEN
        RETURN;
    END IF;
    holds := EXISTS (SELECT FROM claims k WHERE k.claim_id = r.claim);
    IF NOT holds OR (r.call IS NOT NULL AND NOT EXISTS (SELECT FROM claims k WHERE k.claim_id = r.claim AND k.call_id = r.call)) THEN
        took := claim_tasks(r, known, c, now_ms);
        IF took.number > 0 THEN
            INSERT INTO leases (look_at, claim_id) VALUES (now_ms + r.lease_ms, r.claim);
            alone := CASE WHEN NOT holds THEN took.alone END;
            known := took.known;
            holds := true;
        END IF;
        FOREACH place IN ARRAY coalesce(took.learnt, '{}') LOOP
            kind := 'floor';
            lane := known.lanes[place];
            deliveries := known.turns[place];
            number := known.ranks[place];
            task_id := encode(uuid_send(known.ids[place]), 'hex');
            attempt := took.cut::integer;
            RETURN NEXT;
        END LOOP;
        FOREACH headers IN ARRAY coalesce(took.wakeups, '{}') LOOP
            kind := 'wakeup';
            RETURN NEXT;
        END LOOP;
    END IF;
    IF alone.ids IS NOT NULL THEN
        RETURN QUERY
        SELECT 'task', (alone.got[1]).lane, encode(uuid_send(u.id), 'hex'), u.attempt, u.deliveries, c.epoch, t.created_at, alone.claimed_at,
               t.payload, t.headers, t.policy, t.rank
        FROM unnest(alone.ids, alone.attempts, alone.deliveries) u (id, attempt, deliveries)
        CROSS JOIN LATERAL (SELECT k.* FROM tasks k WHERE k.task_id = u.id OFFSET 0) t;
    ELSIF holds THEN
        RETURN QUERY SELECT t.* FROM tasks_of_claim(r.claim, r.queues) t;
    END IF;
END $$;
