-- Claims ready tasks, lowest rank first, and settles the last batch before it.

-- Lanes of a queue that have something to claim, and from where on: a floor that the claimer remembers counts if nothing
-- was put back into the lane since, else the lane's own. Shifts are what to add to the ranks of each to compare them, where
-- a level of priority has a worth of its own (NULL for the usual).
CREATE OR REPLACE FUNCTION open_lanes(
    queue_name text, queue_step_ms bigint, known_types text[], floor_lanes integer[], floor_turns integer[], floor_ranks bigint[],
    floor_ids uuid[],
    OUT numbers integer[], OUT turns integer[], OUT floors bigint[], OUT ranks bigint[], OUT ids uuid[], OUT shifts bigint[]
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT array_agg(l.lane), array_agg(l.turn), array_agg(l.floor), array_agg(coalesce(f.rank, l.floor)),
           array_agg(coalesce(f.id, {lowest_id})), array_agg(coalesce(l.priority * ({step_ms} - queue_step_ms), 0))
    INTO numbers, turns, floors, ranks, ids, shifts
    FROM lanes l
    LEFT JOIN unnest(floor_lanes, floor_turns, floor_ranks, floor_ids) f (lane, turn, rank, id)
        ON f.lane = l.lane AND f.turn = l.turn AND f.rank >= l.floor
    WHERE l.queue = queue_name AND (known_types IS NULL OR l.type = ANY (known_types))
      AND EXISTS (SELECT FROM ready r
                  WHERE r.lane = l.lane AND (r.rank, r.task_id) >= (coalesce(f.rank, l.floor), coalesce(f.id, {lowest_id})));
END $$;

-- From one lane: whatever others are about to claim is stepped over. The time of the claim is read in the statement that
-- makes it: one from the beginning of the call may be earlier than the promotion or the release of what is seen by now.
CREATE OR REPLACE FUNCTION take_from_lane(
    wanted integer, lane_number integer, from_rank bigint, from_id uuid, by_claim text, by_worker text, by_call text,
    under_epoch bigint, given_now bigint, lease_ms bigint,
    OUT got share, OUT ids uuid[], OUT attempts integer[], OUT deliveries integer[], OUT claimed_at bigint
) LANGUAGE plpgsql AS $$
BEGIN
    WITH moment AS MATERIALIZED (SELECT time_ms(given_now) AS now_ms), picked AS MATERIALIZED (
        SELECT r.ctid AS place, r.rank, r.task_id, r.attempt, r.deliveries FROM ready r
        WHERE r.lane = lane_number AND (r.rank, r.task_id) >= (from_rank, from_id)
        ORDER BY r.rank, r.task_id LIMIT wanted
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM ready r USING picked p WHERE r.ctid = p.place
    ), held AS (
        INSERT INTO claims (task_id, lane, attempt, deliveries, epoch, claimed_at, expires_at, claim_id, worker_id, call_id)
        SELECT p.task_id, lane_number, p.attempt + 1, p.deliveries + 1, under_epoch, m.now_ms, m.now_ms + lease_ms, by_claim,
               by_worker, by_call
        FROM picked p, moment m
    )
    SELECT array_agg(p.task_id), array_agg(p.attempt + 1), array_agg(p.deliveries + 1), min(p.rank), max(p.rank),
           (SELECT now_ms FROM moment)
    INTO ids, attempts, deliveries, got.first_rank, got.last_rank, claimed_at
    FROM picked p;
    got.lane := lane_number;
    got.taken := coalesce(cardinality(ids), 0);
    got.last_id := ids[got.taken];
END $$;

-- From several lanes, merged by rank as the queue's step has it. The first of all lanes together are looked up first and locked then, so that no more is
-- locked than is claimed; only if others have locked some of these, each lane is gone through with locks.
CREATE OR REPLACE FUNCTION take_from_lanes(
    wanted integer, numbers integer[], from_ranks bigint[], from_ids uuid[], shifts bigint[], by_claim text, by_worker text,
    by_call text, under_epoch bigint, given_now bigint, lease_ms bigint
) RETURNS share[] LANGUAGE plpgsql AS $$
DECLARE
    got share[];
    more share[];
    taken integer;
    seen integer;
BEGIN
    WITH moment AS MATERIALIZED (SELECT time_ms(given_now) AS now_ms), candidates AS MATERIALIZED (
        SELECT r.place FROM unnest(numbers, from_ranks, from_ids, shifts) f (lane, rank, id, shift)
        CROSS JOIN LATERAL (
            SELECT ctid AS place, ready.rank, ready.task_id FROM ready
            WHERE ready.lane = f.lane AND (ready.rank, ready.task_id) >= (f.rank, f.id)
            ORDER BY ready.rank, ready.task_id LIMIT wanted
        ) r ORDER BY r.rank + f.shift, r.task_id LIMIT wanted
    ), picked AS MATERIALIZED (
        SELECT r.ctid AS place, r.* FROM candidates c JOIN ready r ON r.ctid = c.place FOR UPDATE OF r SKIP LOCKED
    ), gone AS (
        DELETE FROM ready r USING picked p WHERE r.ctid = p.place
    ), held AS (
        INSERT INTO claims (task_id, lane, attempt, deliveries, epoch, claimed_at, expires_at, claim_id, worker_id, call_id)
        SELECT task_id, lane, attempt + 1, deliveries + 1, under_epoch, m.now_ms, m.now_ms + lease_ms, by_claim, by_worker, by_call
        FROM picked, moment m
    ), parts AS (
        SELECT lane, count(*)::integer AS number, min(rank) AS first_rank, max(rank) AS last_rank,
               (array_agg(task_id ORDER BY rank DESC, task_id DESC))[1] AS last_id
        FROM picked GROUP BY lane
    )
    SELECT coalesce(array_agg(ROW(p.*)::share), '{}'), coalesce(sum(p.number), 0), (SELECT count(*) FROM candidates)
    INTO got, taken, seen FROM parts p;
    IF taken = seen THEN
        RETURN got;
    END IF;
    WITH moment AS MATERIALIZED (SELECT time_ms(given_now) AS now_ms), locked AS MATERIALIZED (
        SELECT r.*, f.shift FROM unnest(numbers, from_ranks, from_ids, shifts) f (lane, rank, id, shift)
        CROSS JOIN LATERAL (
            SELECT ctid AS place, ready.* FROM ready
            WHERE ready.lane = f.lane AND (ready.rank, ready.task_id) >= (f.rank, f.id)
            ORDER BY ready.rank, ready.task_id LIMIT wanted - taken
            FOR UPDATE SKIP LOCKED
        ) r
    ), picked AS MATERIALIZED (
        SELECT * FROM locked ORDER BY rank + shift, task_id LIMIT wanted - taken
    ), gone AS (
        DELETE FROM ready r USING picked p WHERE r.ctid = p.place
    ), held AS (
        INSERT INTO claims (task_id, lane, attempt, deliveries, epoch, claimed_at, expires_at, claim_id, worker_id, call_id)
        SELECT task_id, lane, attempt + 1, deliveries + 1, under_epoch, m.now_ms, m.now_ms + lease_ms, by_claim, by_worker, by_call
        FROM picked, moment m
    ), parts AS (
        SELECT lane, count(*)::integer AS number, min(rank) AS first_rank, max(rank) AS last_rank,
               (array_agg(task_id ORDER BY rank DESC, task_id DESC))[1] AS last_id
        FROM picked GROUP BY lane
    )
    SELECT coalesce(array_agg(ROW(p.*)::share), '{}') INTO more FROM parts p;
    RETURN got || more;
END $$;

-- Raises the floor that new claimers begin from; somebody who is at it already is not waited for.
CREATE OR REPLACE FUNCTION raise_floor(lane_number integer, at_turn integer, to_rank bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE lanes SET floor = to_rank
    WHERE lane = (SELECT lane FROM lanes WHERE lane = lane_number AND turn = at_turn FOR UPDATE SKIP LOCKED)
$$;

-- Settles (see changes.sql), then claims up to `max_tasks`: up to its limit from each queue, then again without limits.
-- `call` names a call that claims without looking, to know its repeat. The answer's rows, by their kind:
--   stale_map  the map is newer (number is its version), nothing was done
--   verdict    of a change: attempt is its place, deliveries 2 for applied + 1 for repeated, headers the reason, policy the state
--   bell       to be rung (headers)
--   floor      to be remembered: lane, deliveries is the turn, number the rank, task_id
--   task       claimed; number is the epoch, rank its place in the lane, from which follows when it became ready
CREATE OR REPLACE FUNCTION hand_over(
    given_now bigint, map_version bigint, ids uuid[], tokens text[], results bytea[], others json, other_results bytea[],
    claim text, worker text, call text, queues text[], limits integer[], max_tasks integer, lease_ms bigint, known_types text[],
    floor_lanes integer[], floor_turns integer[], floor_ranks bigint[], floor_ids uuid[]
) RETURNS TABLE (kind text, lane integer, task_id text, attempt integer, deliveries integer, number bigint, created_at bigint,
                 claimed_at bigint, payload bytea, headers text, policy text, rank bigint) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
    newer bigint := newer_map(map_version);
    current_epoch bigint;
    closed text[];
    stepped boolean;
    step_of bigint[];            -- of each queue, NULL for the usual
    holds boolean;
    left_over integer := max_tasks;
    wanted integer;
    sight record;
    took record;
    alone record;                -- what was taken, if it was all from one lane
    got share[];
    part share;
    full_queues text[] := '{}';
    queue_name text;
    place integer;
BEGIN
    IF newer IS NOT NULL THEN
        kind := 'stale_map';
        number := newer;
        RETURN NEXT;
        RETURN;
    END IF;
    IF cardinality(ids) > 0 OR others IS NOT NULL THEN
        FOR attempt, deliveries, headers, policy IN
            SELECT v.place, v.applied::integer * 2 + v.repeated::integer, v.reason, v.state
            FROM change_all(ids, tokens, results, others, other_results, now_ms) v
        LOOP
            kind := 'verdict';
            RETURN NEXT;
        END LOOP;
    END IF;
    IF max_tasks <= 0 OR cardinality(queues) = 0 THEN
        RETURN;
    END IF;
    SELECT (SELECT array_agg(queue) FROM paused), EXISTS (SELECT FROM steps) INTO closed, stepped;
    IF stepped THEN
        SELECT array_agg(s.step_ms ORDER BY q.n) INTO step_of
        FROM unnest(queues) WITH ORDINALITY q (queue, n) LEFT JOIN steps s ON s.queue = q.queue;
    END IF;
    holds := EXISTS (SELECT FROM claims c WHERE c.claim_id = claim);
    IF NOT holds OR (call IS NOT NULL AND NOT EXISTS (SELECT FROM claims c WHERE c.claim_id = claim AND c.call_id = call)) THEN
        current_epoch := upkeep_epoch();
        FOR round IN 1..2 LOOP
            FOR n IN 1..cardinality(queues) LOOP
                CONTINUE WHEN queues[n] = ANY (closed) OR (round = 2 AND limits[n] >= max_tasks);
                wanted := CASE round WHEN 1 THEN least(limits[n], left_over) ELSE left_over END;
                CONTINUE WHEN wanted <= 0;
                sight := open_lanes(queues[n], step_of[n], known_types, floor_lanes, floor_turns, floor_ranks, floor_ids);
                CONTINUE WHEN sight.numbers IS NULL;
                IF cardinality(sight.numbers) = 1 THEN
                    took := take_from_lane(wanted, sight.numbers[1], sight.ranks[1], sight.ids[1], claim, worker, call, current_epoch,
                                           given_now, lease_ms);
                    got := ARRAY[took.got];
                    IF left_over = max_tasks AND NOT holds THEN
                        alone := took;
                    ELSE
                        holds := true;
                    END IF;
                ELSE
                    holds := true;
                    got := take_from_lanes(wanted, sight.numbers, sight.ranks, sight.ids, sight.shifts, claim, worker, call,
                                           current_epoch, given_now, lease_ms);
                END IF;
                FOREACH part IN ARRAY got LOOP
                    CONTINUE WHEN part.taken = 0;
                    place := array_position(sight.numbers, part.lane);
                    kind := 'floor';
                    lane := part.lane;
                    deliveries := sight.turns[place];
                    number := part.last_rank;
                    task_id := part.last_id;
                    RETURN NEXT;
                    IF part.first_rank > sight.floors[place] + {floor_step_ms} THEN
                        PERFORM raise_floor(lane, deliveries, part.first_rank);
                    END IF;
                    place := coalesce(array_position(floor_lanes, lane), cardinality(floor_lanes) + 1);
                    floor_lanes[place] := lane;
                    floor_turns[place] := deliveries;
                    floor_ranks[place] := number;
                    floor_ids[place] := part.last_id;
                    wanted := wanted - part.taken;
                    left_over := left_over - part.taken;
                END LOOP;
                IF wanted = 0 THEN
                    full_queues := full_queues || queues[n];
                END IF;
            END LOOP;
        END LOOP;
        -- Whoever gets all it asked for may leave something behind: then the next worker should have a look.
        IF left_over <= 0 THEN
            FOREACH queue_name IN ARRAY full_queues LOOP
                sight := open_lanes(queue_name, NULL, NULL, floor_lanes, floor_turns, floor_ranks, floor_ids);
                IF sight.numbers IS NOT NULL THEN
                    kind := 'bell';
                    headers := queue_name;
                    RETURN NEXT;
                END IF;
            END LOOP;
        END IF;
    END IF;
    -- In the order in which to start it.
    IF holds THEN
        RETURN QUERY
        SELECT 'task', c.lane, encode(uuid_send(c.task_id), 'hex'), c.attempt, c.deliveries, c.epoch, t.created_at, c.claimed_at,
               t.payload, t.headers, t.policy, t.rank
        FROM claims c JOIN tasks t ON t.task_id = c.task_id JOIN lanes l ON l.lane = c.lane
        WHERE c.claim_id = claim
        ORDER BY array_position(queues, l.queue),
                 t.rank + coalesce(l.priority * ({step_ms} - step_of[array_position(queues, l.queue)]), 0), t.task_id;
    ELSIF left_over < max_tasks THEN
        RETURN QUERY
        SELECT 'task', (alone.got).lane, encode(uuid_send(t.task_id), 'hex'), u.attempt, u.deliveries, current_epoch, t.created_at,
               alone.claimed_at, t.payload, t.headers, t.policy, t.rank
        FROM unnest(alone.ids, alone.attempts, alone.deliveries) u (id, attempt, deliveries) JOIN tasks t ON t.task_id = u.id;
    END IF;
END $$;
