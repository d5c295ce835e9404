-- Executes changes as lifecycle.step says. Acks of claims that are current are done together, the rest one by one.

-- The state to which an event leads, NULL if the table has no such move.
CREATE OR REPLACE FUNCTION target(state text, event text, cancel_requested boolean) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN cancel_requested AND event IN ({runs_again}) THEN {cancelled} ELSE {moves} END
$$;

-- Tells how many tasks of a lane have finished so, or are finished no longer.
CREATE OR REPLACE FUNCTION count_finished(lane_number integer, state_name text, more integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tally (lane, state, number) VALUES (lane_number, state_name, more);
END $$;

-- Whether this claim was ended by this event before.
CREATE OR REPLACE FUNCTION was_settled(id uuid, state text, current text, given_token text, given_event text)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF state = {succeeded} AND current = given_token THEN
        RETURN given_event = {ack};
    END IF;
    RETURN EXISTS (SELECT FROM attempts a WHERE a.task_id = id AND a.token = given_token AND a.event = given_event);
END $$;

-- Puts a task that has left its state where it belongs now.
CREATE OR REPLACE FUNCTION enter(
    t standing, state_name text, place bigint, due_at bigint, attempts_used integer, times_delivered integer, now_ms bigint, why text
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF state_name = {ready} THEN
        INSERT INTO ready (lane, bytes, rank, task_id, attempt, deliveries, result_ttl_ms)
        VALUES (t.lane, octet_length(t.payload), place, t.task_id, attempts_used, times_delivered, result_ttl(t.policy));
    ELSIF state_name IN ({scheduled}, {retry_pending}) THEN
        INSERT INTO scheduled (task_id, due, lane, bytes, attempt, deliveries, is_retry, result_ttl_ms)
        VALUES (t.task_id, due_at, t.lane, octet_length(t.payload), attempts_used, times_delivered, state_name = {retry_pending},
                result_ttl(t.policy));
    ELSE
        INSERT INTO finished (task_id, lane, attempt, deliveries, finished_at, delete_at, state, reason)
        VALUES (t.task_id, t.lane, attempts_used, times_delivered, now_ms, now_ms + kept_ms(t.policy, state_name), state_name, why);
        PERFORM count_finished(t.lane, state_name, 1);
    END IF;
END $$;

-- Takes a task out of the state in which it was seen; false if it is no longer there, or was claimed and put back meanwhile.
CREATE OR REPLACE FUNCTION leave(id uuid, state_name text, lane_number integer, place bigint, times_delivered integer)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF state_name = {ready} THEN
        DELETE FROM ready WHERE lane = lane_number AND rank = place AND task_id = id AND deliveries = times_delivered;
    ELSIF state_name IN ({scheduled}, {retry_pending}) THEN
        DELETE FROM scheduled
        WHERE task_id = id AND is_retry = (state_name = {retry_pending}) AND lane = lane_number AND deliveries = times_delivered;
    ELSE
        DELETE FROM finished WHERE task_id = id AND state = state_name;
        IF FOUND THEN
            PERFORM count_finished(lane_number, state_name, -1);
            RETURN true;
        END IF;
    END IF;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION ack_one(id uuid, given_token text, now_ms bigint, given_result bytea) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM claims c WHERE c.task_id = id AND {token} = given_token RETURNING c.*
    ), done AS (
        INSERT INTO finished (task_id, lane, attempt, deliveries, finished_at, delete_at, epoch, claimed_at, state, claim_id,
                              worker_id, progress, result)
        SELECT task_id, lane, attempt, deliveries, now_ms, now_ms + coalesce(result_ttl_ms, {result_ttl_ms}), epoch, claimed_at,
               {succeeded}, claim_id, worker_id, progress, given_result
        FROM gone
    )
    INSERT INTO tally (lane, state, number) SELECT lane, {succeeded}, 1 FROM gone;
    RETURN FOUND;
END $$;

-- Ends a claim otherwise than by success; NULL if it is not current any more, else the new state.
CREATE OR REPLACE FUNCTION settle_one(t standing, c change, now_ms bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    claim claims;
    new_state text;
    spared integer := (c.event IN ({spares_attempt}))::integer;
    place bigint := t.rank;
    due_at bigint;
BEGIN
    DELETE FROM claims WHERE task_id = t.task_id AND deliveries = t.deliveries AND (NOT c.expired_only OR expires_at <= now_ms)
    RETURNING * INTO claim;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    new_state := target({claimed}, c.event, claim.cancel_requested);
    INSERT INTO attempts (task_id, delivery, attempt, token, worker_id, event, outcome, started_at, ended_at, error_type, error)
    VALUES (t.task_id, claim.deliveries, claim.attempt, t.token, claim.worker_id, c.event, c.outcome, claim.claimed_at, now_ms,
            c.error_type, c.error);
    IF claim.deliveries > {history_limit} THEN
        DELETE FROM attempts WHERE task_id = t.task_id AND delivery <= claim.deliveries - {history_limit};
    END IF;
    IF new_state IN ({scheduled}, {retry_pending}) THEN
        due_at := now_ms + c.delay_ms;
        place := due_at - t.priority * {step_ms}::bigint;
        UPDATE tasks SET rank = place WHERE task_id = t.task_id;
    END IF;
    PERFORM enter(t, new_state, place, due_at, claim.attempt - spared, claim.deliveries, now_ms,
                  CASE WHEN new_state = {cancelled} THEN coalesce(c.reason, claim.reason) ELSE c.reason END);
    IF claim.progress IS NOT NULL THEN
        UPDATE finished SET progress = claim.progress WHERE task_id = t.task_id;
    END IF;
    RETURN new_state;
END $$;

CREATE OR REPLACE FUNCTION discard_one(t standing, why text, now_ms bigint) RETURNS void LANGUAGE sql AS $$
    INSERT INTO discards (task_id, type, queue, payload, reason, error, discarded_at)
    VALUES (t.task_id, t.type, t.queue, t.payload, coalesce(why, ''),
            coalesce((SELECT error FROM attempts WHERE task_id = t.task_id ORDER BY delivery DESC LIMIT 1), ''), now_ms);
    DELETE FROM attempts WHERE task_id = t.task_id;
    DELETE FROM deadlines WHERE starts_by = deadline(t.created_at, t.policy) AND task_id = t.task_id;
    DELETE FROM requests WHERE queue = t.queue AND request_id = t.request_id AND task_id = t.task_id;
    DELETE FROM tasks WHERE task_id = t.task_id;
$$;

-- What people ask for, and the end of what no worker began in time. NULL if the task is not in that state any more, else the new one.
CREATE OR REPLACE FUNCTION move_one(t standing, c change, now_ms bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    new_state text := target(t.state, c.event, false);
BEGIN
    IF new_state = {claimed} THEN
        UPDATE claims SET cancel_requested = true, reason = c.reason
        WHERE task_id = t.task_id AND deliveries = t.deliveries;
        RETURN CASE WHEN FOUND THEN new_state END;
    END IF;
    IF NOT leave(t.task_id, t.state, t.lane, t.rank, t.deliveries) THEN
        RETURN NULL;
    END IF;
    IF new_state = 'gone' THEN
        PERFORM discard_one(t, c.reason, now_ms);
        RETURN new_state;
    END IF;
    IF c.event = {replay} THEN
        t.run_at := now_ms;
        t.attempt := 0;
    ELSIF c.event = {prioritize} THEN
        t.priority := c.priority;
        t.lane := (lanes_of(ARRAY[t.queue], ARRAY[t.type], ARRAY[c.priority]))[1];
    ELSIF c.event = {reschedule} THEN
        t.run_at := now_ms + c.delay_ms;
    END IF;
    IF c.event IN ({replay}, {prioritize}, {reschedule}) THEN
        t.rank := t.run_at - t.priority * {step_ms}::bigint;
        UPDATE tasks SET lane = t.lane, rank = t.rank WHERE task_id = t.task_id;
    END IF;
    PERFORM enter(t, new_state, t.rank, t.run_at, t.attempt, t.deliveries, now_ms, c.reason);
    RETURN new_state;
END $$;

-- One change and its verdict, and where the task stands if it has become ready.
-- What was seen may have changed when it is to be taken; then all is looked at anew.
CREATE OR REPLACE FUNCTION change_one(c change, result bytea, now_ms bigint, OUT v verdict, OUT lane integer, OUT rank bigint) LANGUAGE plpgsql AS $$
DECLARE
    t standing;
    new_state text;
    known boolean;
BEGIN
    FOR round IN 1..{most_rounds} LOOP
        SELECT * INTO t FROM standing WHERE task_id = c.task_id;
        known := FOUND;
        v := (c.place, false, false, '', t.state, NULL);
        IF c.epoch IS NOT NULL AND c.epoch <> held_epoch() THEN
            v.reason := 'stale_epoch';
            RETURN;
        ELSIF NOT known THEN
            v.reason := 'unknown';
            RETURN;
        ELSIF c.event IN ({settlements}) THEN
            IF t.state <> {claimed} OR c.token IS NULL OR t.token <> c.token THEN
                v.applied := coalesce(was_settled(t.task_id, t.state, t.token, c.token, c.event), false);
                v.repeated := v.applied;
                v.reason := CASE WHEN v.applied THEN '' ELSE 'stale_claim' END;
                RETURN;
            ELSIF c.expired_only AND t.expires_at > now_ms THEN
                v.reason := 'not_expired';
                RETURN;
            END IF;
            IF c.event = {ack} THEN
                new_state := CASE WHEN ack_one(t.task_id, c.token, now_ms, result) THEN {succeeded} END;
            ELSE
                new_state := settle_one(t, c, now_ms);
            END IF;
        ELSIF target(t.state, c.event, false) IS NULL OR c.event = {expire} AND t.deliveries > 0 THEN
            v.applied := c.event = {cancel} AND t.state = {cancelled};
            v.repeated := v.applied;
            v.reason := CASE WHEN v.applied THEN '' ELSE 'wrong_state' END;
            RETURN;
        ELSE
            new_state := move_one(t, c, now_ms);
        END IF;
        EXIT WHEN new_state IS NOT NULL;
    END LOOP;
    IF new_state IS NULL THEN
        RAISE EXCEPTION 'task % keeps changing', c.task_id USING ERRCODE = '40001';
    END IF;
    v.applied := true;
    v.state := CASE WHEN new_state <> 'gone' THEN new_state END;
    IF new_state = {ready} THEN
        SELECT k.lane, k.rank INTO lane, rank FROM tasks k WHERE k.task_id = c.task_id;
        v.wakeup := t.queue;
    ELSIF new_state IN ({scheduled}, {retry_pending}) THEN
        v.wakeup := {maintenance_wakeup};
    END IF;
END $$;

-- Acks of different tasks, all at once; answers with the places of those that must be looked at one by one.
CREATE OR REPLACE FUNCTION ack_all(ids uuid[], tokens text[], results bytea[], now_ms bigint) RETURNS integer[]
LANGUAGE plpgsql AS $$
DECLARE
    first_token text := tokens[1];
    acked uuid[];
BEGIN
    WITH gone AS (
        DELETE FROM claims c USING unnest(ids, tokens, results) a (id, token, result)
        WHERE c.task_id = ANY (ARRAY[a.id]) AND {token} = coalesce(a.token, first_token)
        RETURNING c.task_id, c.lane, c.attempt, c.deliveries, c.epoch, c.claimed_at, c.claim_id, c.worker_id, c.progress,
                  c.result_ttl_ms, a.result
    ), done AS (
        INSERT INTO finished (task_id, lane, attempt, deliveries, finished_at, delete_at, epoch, claimed_at, state, claim_id,
                              worker_id, progress, result)
        SELECT task_id, lane, attempt, deliveries, now_ms, now_ms + coalesce(result_ttl_ms, {result_ttl_ms}), epoch, claimed_at,
               {succeeded}, claim_id, worker_id, progress, result
        FROM gone
    ), counted AS (
        INSERT INTO tally (lane, state, number) SELECT lane, {succeeded}, count(*) FROM gone GROUP BY lane
    )
    SELECT array_agg(task_id) INTO acked FROM gone;
    IF cardinality(acked) = cardinality(ids) THEN
        RETURN '{}';
    END IF;
    RETURN (SELECT array_agg(place) FROM unnest(ids) WITH ORDINALITY a (id, place) WHERE acked IS NULL OR id <> ALL (acked));
END $$;

-- Locks the claims of these tasks in the order of their ids, as every call does: so no two ever wait for each other.
CREATE OR REPLACE FUNCTION lock_claims(ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM (SELECT DISTINCT u.id FROM unnest(ids) u (id) ORDER BY u.id) u
    CROSS JOIN LATERAL (SELECT FROM claims c WHERE c.task_id = u.id FOR UPDATE) c;
END $$;

-- All changes of a call: `acks` are of different tasks, of which `others` (JSON) has none; both by id, and those of one task in
-- order.
-- If there is one token only, it is that of all acks. Answers for acks only if they were not simply applied, under the places
-- -1, -2…; those of the others come from the caller.
CREATE OR REPLACE FUNCTION change_all(
    ids uuid[], tokens text[], results bytea[], others json, other_results bytea[], now_ms bigint
) RETURNS SETOF verdict LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    one record;
    answer record;
    returned integer[] := '{}';
    ranks bigint[] := '{}';
    n integer := 0;
BEGIN
    IF cardinality(ids) > 0 AND others IS NOT NULL THEN
        PERFORM lock_claims(ids || ARRAY(SELECT c.task_id FROM json_populate_recordset(NULL::change, others) c));
    END IF;
    IF cardinality(ids) > 0 THEN
        FOREACH n IN ARRAY ack_all(ids, tokens, results, now_ms) LOOP
            SELECT * INTO answer FROM change_one(
                ROW(-n, {ack}, ids[n], coalesce(tokens[n], tokens[1]), false, NULL, 0, 'succeeded', NULL, NULL, NULL, NULL)::change, results[n],
                now_ms);
            RETURN NEXT answer.v;
        END LOOP;
    END IF;
    IF others IS NOT NULL THEN
        n := 0;
        FOR one IN SELECT c FROM json_populate_recordset(NULL::change, others) c LOOP
            n := n + 1;
            SELECT * INTO answer FROM change_one(one.c, other_results[n], now_ms);
            IF answer.lane IS NOT NULL THEN
                returned := returned || answer.lane;
                ranks := ranks || answer.rank;
            END IF;
            RETURN NEXT answer.v;
        END LOOP;
        PERFORM turn(returned, ranks);
    END IF;
END $$;

-- Tasks were put back into these lanes at these ranks, below floors that claimers may remember.
CREATE OR REPLACE FUNCTION turn(numbers integer[], ranks bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(numbers) > 0 THEN
        -- Locked in one order, so that two of these never wait for each other.
        PERFORM FROM (SELECT DISTINCT u.lane FROM unnest(numbers) u (lane) ORDER BY u.lane) u
        CROSS JOIN LATERAL (SELECT FROM lanes k WHERE k.lane = u.lane FOR UPDATE) l;
        UPDATE lanes l SET turn = l.turn + 1, floor = least(l.floor, lowest.rank)
        FROM (SELECT lane, min(rank) AS rank FROM unnest(numbers, ranks) u (lane, rank) GROUP BY lane) lowest
        WHERE l.lane = ANY (ARRAY[lowest.lane]);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION apply(
    given_now bigint, ids uuid[], tokens text[], results bytea[], others json, other_results bytea[]
) RETURNS SETOF verdict LANGUAGE plpgsql {path} AS $$
BEGIN
    RETURN QUERY SELECT * FROM change_all(ids, tokens, results, others, other_results, time_ms(given_now));
END $$;
