-- The schema as the code of version 2 made it, dumped with pg_dump --schema-only --no-owner. It was released: it never changes.

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

CREATE SCHEMA holdfast;

CREATE TYPE holdfast.change AS (
	place integer,
	event text,
	task_id uuid,
	token text,
	lapsed_only boolean,
	epoch bigint,
	delay_ms bigint,
	outcome text,
	error_type text,
	error text,
	reason text
);

CREATE TYPE holdfast.share AS (
	lane integer,
	taken integer,
	first_rank bigint,
	last_rank bigint,
	last_id uuid
);

CREATE TYPE holdfast.verdict AS (
	place integer,
	applied boolean,
	repeated boolean,
	reason text,
	state text,
	bell text
);

CREATE FUNCTION holdfast.ack_all(ids uuid[], tokens text[], results bytea[], now_ms bigint) RETURNS integer[]
    LANGUAGE plpgsql
    AS $$
DECLARE
    first_token text := tokens[1];
    acked uuid[];
BEGIN
    WITH gone AS (
        DELETE FROM claims c USING unnest(ids, tokens, results) a (id, token, result)
        WHERE c.task_id = a.id AND (c.epoch || '.' || c.deliveries || '.' || c.claim_id) = coalesce(a.token, first_token)
        RETURNING c.task_id, c.lane, c.attempt, c.deliveries, c.epoch, c.claimed_at, c.claim_id, c.worker_id, c.progress, a.result
    ), done AS (
        INSERT INTO finished (task_id, lane, attempt, deliveries, finished_at, epoch, claimed_at, state, claim_id, worker_id,
                              progress, result)
        SELECT task_id, lane, attempt, deliveries, now_ms, epoch, claimed_at, 'succeeded', claim_id, worker_id, progress, result
        FROM gone
    ), counted AS (
        INSERT INTO tally (lane, state, number) SELECT lane, 'succeeded', count(*) FROM gone GROUP BY lane
    )
    SELECT array_agg(task_id) INTO acked FROM gone;
    IF cardinality(acked) = cardinality(ids) THEN
        RETURN '{}';
    END IF;
    RETURN (SELECT array_agg(place) FROM unnest(ids) WITH ORDINALITY a (id, place) WHERE acked IS NULL OR id <> ALL (acked));
END $$;

CREATE FUNCTION holdfast.ack_one(id uuid, given_token text, now_ms bigint, given_result bytea) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    WITH gone AS (
        DELETE FROM claims c WHERE c.task_id = id AND (c.epoch || '.' || c.deliveries || '.' || c.claim_id) = given_token RETURNING c.*
    ), done AS (
        INSERT INTO finished (task_id, lane, attempt, deliveries, finished_at, epoch, claimed_at, state, claim_id, worker_id,
                              progress, result)
        SELECT task_id, lane, attempt, deliveries, now_ms, epoch, claimed_at, 'succeeded', claim_id, worker_id, progress,
               given_result
        FROM gone
    )
    INSERT INTO tally (lane, state, number) SELECT lane, 'succeeded', 1 FROM gone;
    RETURN FOUND;
END $$;

CREATE FUNCTION holdfast.all_discards(most integer) RETURNS TABLE(task_id text, type text, queue text, payload bytea, reason text, discarded_at bigint, error text)
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT encode(uuid_send(task_id), 'hex'), type, queue, payload, reason, discarded_at, error
    FROM discards ORDER BY number DESC LIMIT most;
END $$;

CREATE FUNCTION holdfast.all_workers(given_now bigint) RETURNS TABLE(record bytea, started_at bigint, seen_at bigint, alive boolean)
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    RETURN QUERY SELECT record, started_at, seen_at, expires_at > now_ms FROM workers ORDER BY worker_id COLLATE "C";
END $$;

CREATE FUNCTION holdfast.announce(given_now bigint, id text, words bytea, ttl_ms bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    IF ttl_ms <= 0 THEN
        DELETE FROM workers WHERE worker_id = id;
    ELSE
        INSERT INTO workers AS w (worker_id, record, started_at, seen_at, expires_at)
        VALUES (id, words, now_ms, now_ms, now_ms + ttl_ms)
        ON CONFLICT (worker_id) DO UPDATE
        SET record = excluded.record, seen_at = excluded.seen_at, expires_at = excluded.expires_at;
    END IF;
END $$;

CREATE FUNCTION holdfast.apply(given_now bigint, ids uuid[], tokens text[], results bytea[], others json, other_results bytea[]) RETURNS SETOF holdfast.verdict
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
BEGIN
    RETURN QUERY SELECT * FROM change_all(ids, tokens, results, others, other_results, time_ms(given_now));
END $$;

CREATE FUNCTION holdfast.attend(names text[], on_channel text) RETURNS SETOF text
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT DISTINCT each FROM unnest(names) AS each ORDER BY each
    LOOP
        PERFORM pg_advisory_xact_lock('waiting'::regclass::integer, hashtext(name));
        DELETE FROM unheard WHERE bell = name;
        IF FOUND THEN
            RETURN NEXT name;
        ELSE
            INSERT INTO waiting VALUES (name, on_channel, pg_backend_pid()) ON CONFLICT DO NOTHING;
        END IF;
    END LOOP;
END
$$;

CREATE FUNCTION holdfast.change_all(ids uuid[], tokens text[], results bytea[], others json, other_results bytea[], now_ms bigint) RETURNS SETOF holdfast.verdict
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    one record;
    answer record;
    returned integer[] := '{}';
    ranks bigint[] := '{}';
    n integer := 0;
BEGIN
    IF cardinality(ids) > 0 THEN
        FOREACH n IN ARRAY ack_all(ids, tokens, results, now_ms) LOOP
            SELECT * INTO answer FROM change_one(
                ROW(-n, 'ack', ids[n], coalesce(tokens[n], tokens[1]), false, NULL, 0, 'succeeded', NULL, NULL, NULL)::change, results[n], now_ms);
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

CREATE FUNCTION holdfast.change_one(c holdfast.change, result bytea, now_ms bigint, OUT v holdfast.verdict, OUT lane integer, OUT rank bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    t standing;
    new_state text;
    known boolean;
BEGIN
    LOOP
        SELECT * INTO t FROM standing WHERE task_id = c.task_id;
        known := FOUND;
        v := (c.place, false, false, '', t.state, NULL);
        IF c.epoch IS NOT NULL AND c.epoch <> held_epoch() THEN
            v.reason := 'stale_epoch';
            RETURN;
        ELSIF NOT known THEN
            v.reason := 'unknown';
            RETURN;
        ELSIF c.event IN ('ack', 'bury', 'fail', 'release', 'requeue', 'retry', 'snooze', 'stop') THEN
            IF t.state <> 'claimed' OR c.token IS NULL OR t.token <> c.token THEN
                v.applied := coalesce(was_settled(t.task_id, t.state, t.token, c.token, c.event), false);
                v.repeated := v.applied;
                v.reason := CASE WHEN v.applied THEN '' ELSE 'stale_claim' END;
                RETURN;
            ELSIF c.lapsed_only AND t.expires_at > now_ms THEN
                v.reason := 'not_lapsed';
                RETURN;
            END IF;
            IF c.event = 'ack' THEN
                new_state := CASE WHEN ack_one(t.task_id, c.token, now_ms, result) THEN 'succeeded' END;
            ELSE
                new_state := settle_one(t, c, now_ms);
            END IF;
        ELSIF target(t.state, c.event, false) IS NULL THEN
            v.applied := c.event = 'cancel' AND t.state = 'cancelled';
            v.repeated := v.applied;
            v.reason := CASE WHEN v.applied THEN '' ELSE 'wrong_state' END;
            RETURN;
        ELSE
            new_state := move_one(t, c, now_ms);
        END IF;
        EXIT WHEN new_state IS NOT NULL;
    END LOOP;
    v.applied := true;
    v.state := CASE WHEN new_state <> 'gone' THEN new_state END;
    IF new_state = 'ready' THEN
        lane := t.lane;
        rank := CASE WHEN c.event = 'replay' THEN now_ms - t.priority * 60000::bigint ELSE t.rank END;
        v.bell := t.queue;
    ELSIF new_state IN ('scheduled', 'retry_pending') THEN
        v.bell := '*upkeep';
    END IF;
END $$;

CREATE FUNCTION holdfast.complete(given_now bigint, id uuid, given_token text, given_result bytea) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
BEGIN
    IF current_setting('holdfast.claim', true) IS DISTINCT FROM given_token THEN
        RAISE EXCEPTION 'the transaction was ended inside the block' USING ERRCODE = 'HF002';
    END IF;
    IF NOT ack_one(id, given_token, time_ms(given_now), given_result) THEN
        RAISE EXCEPTION 'the claim is not current any more' USING ERRCODE = 'HF001';
    END IF;
END $$;

CREATE FUNCTION holdfast.count_finished(lane_number integer, state_name text, more integer) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO tally (lane, state, number) VALUES (lane_number, state_name, more);
END $$;

CREATE FUNCTION holdfast.counts(given_now bigint) RETURNS TABLE(queue text, state text, number bigint, oldest_ms bigint)
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    RETURN QUERY
    SELECT l.queue, n.state, sum(n.number)::bigint, max(now_ms - n.rank - l.priority * 60000::bigint)
    FROM (
        SELECT lane, 'ready' AS state, count(*) AS number, min(rank) AS rank FROM ready GROUP BY lane
        UNION ALL
        SELECT lane, 'claimed', count(*), NULL FROM claims GROUP BY lane
        UNION ALL
        SELECT lane, CASE WHEN is_retry THEN 'retry_pending' ELSE 'scheduled' END, count(*), NULL FROM scheduled GROUP BY 1, 2
        UNION ALL
        SELECT lane, state, sum(number), NULL FROM tally GROUP BY 1, 2
    ) n JOIN lanes l ON l.lane = n.lane
    GROUP BY l.queue, n.state HAVING sum(n.number) > 0
    UNION ALL
    SELECT queue, NULL, NULL, NULL FROM paused;
END $$;

SET default_tablespace = '';

SET default_table_access_method = heap;

CREATE TABLE holdfast.claims (
    task_id uuid NOT NULL,
    lane integer NOT NULL,
    attempt integer NOT NULL,
    deliveries integer NOT NULL,
    epoch bigint NOT NULL,
    claimed_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    cancel_requested boolean DEFAULT false NOT NULL,
    claim_id text NOT NULL COLLATE pg_catalog."C",
    worker_id text NOT NULL COLLATE pg_catalog."C",
    call_id text,
    reason text,
    progress bytea
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_cost_delay='0');

CREATE TABLE holdfast.finished (
    task_id uuid NOT NULL,
    lane integer NOT NULL,
    attempt integer NOT NULL,
    deliveries integer NOT NULL,
    finished_at bigint NOT NULL,
    epoch bigint,
    claimed_at bigint,
    state text NOT NULL COLLATE pg_catalog."C",
    claim_id text COLLATE pg_catalog."C",
    worker_id text COLLATE pg_catalog."C",
    reason text,
    progress bytea,
    result bytea
);

CREATE TABLE holdfast.lanes (
    lane integer NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    priority integer NOT NULL,
    floor bigint DEFAULT '-9223372036854775808'::bigint NOT NULL,
    turn integer DEFAULT 0 NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE holdfast.ready (
    lane integer NOT NULL,
    rank bigint NOT NULL,
    task_id uuid NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    deliveries integer DEFAULT 0 NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_cost_delay='0');

CREATE TABLE holdfast.scheduled (
    task_id uuid NOT NULL,
    due bigint NOT NULL,
    lane integer NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    deliveries integer DEFAULT 0 NOT NULL,
    is_retry boolean DEFAULT false NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_cost_delay='0');

CREATE TABLE holdfast.tasks (
    task_id uuid NOT NULL,
    lane integer NOT NULL,
    rank bigint NOT NULL,
    created_at bigint NOT NULL,
    request_id text COLLATE pg_catalog."C",
    headers text,
    policy text,
    payload bytea NOT NULL
);

CREATE VIEW holdfast.standing AS
 SELECT t.task_id,
    l.queue,
    l.type,
    l.priority,
    t.lane,
    t.rank,
    (t.rank + (l.priority * (60000)::bigint)) AS run_at,
        CASE
            WHEN (r.task_id IS NOT NULL) THEN 'ready'::text
            WHEN (c.task_id IS NOT NULL) THEN 'claimed'::text
            WHEN (s.task_id IS NOT NULL) THEN
            CASE
                WHEN s.is_retry THEN 'retry_pending'::text
                ELSE 'scheduled'::text
            END
            ELSE f.state
        END AS state,
    COALESCE(r.attempt, c.attempt, s.attempt, f.attempt) AS attempt,
    COALESCE(r.deliveries, c.deliveries, s.deliveries, f.deliveries) AS deliveries,
    t.created_at,
    f.finished_at,
    COALESCE(c.worker_id, f.worker_id) AS worker_id,
    COALESCE(c.claimed_at, f.claimed_at) AS claimed_at,
    c.expires_at,
    COALESCE(c.cancel_requested, false) AS cancel_requested,
    COALESCE(c.progress, f.progress) AS progress,
    COALESCE(c.reason, f.reason) AS reason,
    t.request_id,
    t.payload,
    t.headers,
    t.policy,
    f.result,
    ((((COALESCE(c.epoch, f.epoch) || '.'::text) || COALESCE(c.deliveries, f.deliveries)) || '.'::text) || COALESCE(c.claim_id, f.claim_id)) AS token
   FROM (((((holdfast.tasks t
     JOIN holdfast.lanes l ON ((l.lane = t.lane)))
     LEFT JOIN holdfast.ready r ON (((r.lane = t.lane) AND (r.rank = t.rank) AND (r.task_id = t.task_id))))
     LEFT JOIN holdfast.claims c ON ((c.task_id = t.task_id)))
     LEFT JOIN holdfast.scheduled s ON ((s.task_id = t.task_id)))
     LEFT JOIN holdfast.finished f ON ((f.task_id = t.task_id)));

CREATE FUNCTION holdfast.discard_one(t holdfast.standing, why text, now_ms bigint) RETURNS void
    LANGUAGE sql
    AS $$
    INSERT INTO discards (task_id, type, queue, payload, reason, error, discarded_at)
    VALUES (t.task_id, t.type, t.queue, t.payload, coalesce(why, ''),
            coalesce((SELECT error FROM attempts WHERE task_id = t.task_id ORDER BY delivery DESC LIMIT 1), ''), now_ms);
    DELETE FROM attempts WHERE task_id = t.task_id;
    DELETE FROM requests WHERE queue = t.queue AND request_id = t.request_id AND task_id = t.task_id;
    DELETE FROM tasks WHERE task_id = t.task_id;
$$;

CREATE FUNCTION holdfast.enqueue(given_now bigint, map_version bigint, ids uuid[], payloads bytea[], all_headers text[], policies text[], shape_of integer[], queues text[], types text[], priorities integer[], waits bigint[], run_ats bigint[], request_ids text[]) RETURNS TABLE(outcome text, place integer, number bigint, known_id text, known_type text)
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
    newer bigint := newer_map(map_version);
    lane_of integer[];
    due_of bigint[];
    recorded uuid[];
    first_due bigint;
BEGIN
    IF newer IS NOT NULL THEN
        RETURN QUERY SELECT 'stale_map', 0, newer, NULL::text, NULL::text;
        RETURN;
    END IF;
    lane_of := lanes_of(queues, types, priorities);
    SELECT array_agg(greatest(coalesce(run_at, now_ms + wait), now_ms) ORDER BY n), min(coalesce(run_at, now_ms + wait))
        FILTER (WHERE coalesce(run_at, now_ms + wait) > now_ms)
    INTO due_of, first_due
    FROM unnest(waits, run_ats) WITH ORDINALITY s (wait, run_at, n);
    IF first_due IS NOT NULL AND NOT EXISTS (SELECT FROM scheduled WHERE due <= first_due) THEN
        RETURN QUERY SELECT 'upkeep', 0, first_due, NULL::text, NULL::text;
    END IF;
    IF request_ids IS NOT NULL THEN
        RETURN QUERY SELECT * FROM enqueue_each(
            now_ms, ids, payloads, all_headers, policies, shape_of, queues, types, priorities, lane_of, due_of, request_ids);
        RETURN;
    END IF;
    IF first_due IS NULL THEN
        WITH new AS (
            INSERT INTO tasks (task_id, lane, rank, created_at, headers, policy, payload)
            SELECT id, lane_of[coalesce(shape, 1)], now_ms - priorities[coalesce(shape, 1)] * 60000::bigint, now_ms,
                   headers, policy, payload
            FROM unnest(ids, payloads, all_headers, policies, shape_of) u (id, payload, headers, policy, shape)
            ON CONFLICT DO NOTHING
            RETURNING task_id, lane, rank
        ), waiting AS (
            INSERT INTO ready (lane, rank, task_id) SELECT lane, rank, task_id FROM new
        )
        SELECT array_agg(task_id) INTO recorded FROM new;
    ELSE
        WITH new AS (
            INSERT INTO tasks (task_id, lane, rank, created_at, headers, policy, payload)
            SELECT id, lane_of[coalesce(shape, 1)],
                   due_of[coalesce(shape, 1)] - priorities[coalesce(shape, 1)] * 60000::bigint, now_ms, headers, policy, payload
            FROM unnest(ids, payloads, all_headers, policies, shape_of) u (id, payload, headers, policy, shape)
            ON CONFLICT DO NOTHING
            RETURNING task_id, lane, rank
        ), placed AS MATERIALIZED (
            SELECT task_id, lane, rank, rank + priority * 60000::bigint AS due FROM new JOIN lanes USING (lane)
        ), waiting AS (
            INSERT INTO ready (lane, rank, task_id) SELECT lane, rank, task_id FROM placed WHERE due <= now_ms
        ), delayed AS (
            INSERT INTO scheduled (task_id, due, lane) SELECT task_id, due, lane FROM placed WHERE due > now_ms
        )
        SELECT array_agg(task_id) INTO recorded FROM new;
    END IF;
    IF coalesce(cardinality(recorded), 0) < cardinality(ids) THEN
        RETURN QUERY SELECT * FROM known_tasks(ids, payloads, shape_of, types, coalesce(recorded, '{}'));
    END IF;
END $$;

CREATE FUNCTION holdfast.enqueue_each(now_ms bigint, ids uuid[], payloads bytea[], all_headers text[], policies text[], shape_of integer[], queues text[], types text[], priorities integer[], lane_of integer[], due_of bigint[], request_ids text[]) RETURNS TABLE(outcome text, place integer, number bigint, known_id text, known_type text)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    one record;
    known record;
    shape integer;
    done boolean;
BEGIN
    FOR one IN
        SELECT u.*, u.id AS new_id
        FROM unnest(ids, payloads, all_headers, policies, request_ids) WITH ORDINALITY u (id, payload, headers, policy, request_id, n)
        ORDER BY n
    LOOP
        shape := coalesce(shape_of[one.n], 1);
        LOOP
            SELECT t.task_id, 'task_id' AS kind INTO known FROM tasks t WHERE t.task_id = one.new_id;
            IF NOT FOUND AND one.request_id IS NOT NULL THEN
                SELECT q.task_id, 'request_id' AS kind INTO known
                FROM requests q WHERE q.queue = queues[shape] AND q.request_id = one.request_id;
            END IF;
            IF FOUND THEN
                RETURN QUERY
                SELECT CASE WHEN l.type = types[shape] AND t.payload = one.payload THEN 'known' ELSE known.kind END,
                       one.n::integer, NULL::bigint, encode(uuid_send(t.task_id), 'hex'), l.type
                FROM tasks t JOIN lanes l USING (lane) WHERE t.task_id = known.task_id;
                EXIT WHEN FOUND;
            ELSE
                done := record_one(now_ms, one.new_id, one.payload, one.headers, one.policy, one.request_id, queues[shape],
                                   lane_of[shape], due_of[shape], due_of[shape] - priorities[shape] * 60000::bigint);
                EXIT WHEN done;
            END IF;
        END LOOP;
    END LOOP;
END $$;

CREATE FUNCTION holdfast.enqueue_within(call text) RETURNS TABLE(outcome text, place integer, number bigint, known_id text, known_type text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
DECLARE
    given json := call::json;
BEGIN
    IF given ->> 'home' <> home() THEN
        RETURN QUERY SELECT 'elsewhere', 0, NULL::bigint, NULL::text, NULL::text;
        RETURN;
    END IF;
    IF NOT make_safe(given ->> 'level') THEN
        RETURN QUERY SELECT 'no_standbys', 0, NULL::bigint, NULL::text, NULL::text;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT answer.* FROM (
        SELECT array_agg(task_id ORDER BY n) AS ids, array_agg(decode(payload, 'base64') ORDER BY n) AS payloads,
               array_agg(headers ORDER BY n) AS headers, array_agg(policy ORDER BY n) AS policies,
               array_agg(n::integer ORDER BY n) AS shapes, array_agg(queue ORDER BY n) AS queues,
               array_agg(type ORDER BY n) AS types, array_agg(priority ORDER BY n) AS priorities,
               array_agg(delay_ms ORDER BY n) AS waits, array_agg(run_at_ms ORDER BY n) AS run_ats,
               CASE WHEN count(request_id) > 0 THEN array_agg(request_id ORDER BY n) END AS request_ids
        FROM ROWS FROM (json_to_recordset(given -> 'tasks') AS (
            task_id uuid, type text, queue text, payload text, headers text, policy text, request_id text, priority integer,
            delay_ms bigint, run_at_ms bigint
        )) WITH ORDINALITY t (task_id, type, queue, payload, headers, policy, request_id, priority, delay_ms, run_at_ms, n)
    ) c
    CROSS JOIN LATERAL enqueue((given ->> 'now')::bigint, (given ->> 'map_version')::bigint, ids, payloads, headers, policies,
                               shapes, queues, types, priorities, waits, run_ats, request_ids) answer;
END $$;

CREATE FUNCTION holdfast.enter(id uuid, state_name text, lane_number integer, place bigint, due_at bigint, attempts_used integer, times_delivered integer, now_ms bigint, why text) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF state_name = 'ready' THEN
        INSERT INTO ready (lane, rank, task_id, attempt, deliveries)
        VALUES (lane_number, place, id, attempts_used, times_delivered);
    ELSIF state_name IN ('scheduled', 'retry_pending') THEN
        INSERT INTO scheduled (task_id, due, lane, attempt, deliveries, is_retry)
        VALUES (id, due_at, lane_number, attempts_used, times_delivered, state_name = 'retry_pending');
    ELSE
        INSERT INTO finished (task_id, lane, attempt, deliveries, finished_at, state, reason)
        VALUES (id, lane_number, attempts_used, times_delivered, now_ms, state_name, why);
        PERFORM count_finished(lane_number, state_name, 1);
    END IF;
END $$;

CREATE FUNCTION holdfast.expired(given_now bigint, most integer) RETURNS TABLE(task_id text, token text, attempt integer, policy text, worker_id text)
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    RETURN QUERY
    SELECT encode(uuid_send(c.task_id), 'hex'), (c.epoch || '.' || c.deliveries || '.' || c.claim_id), c.attempt, t.policy, c.worker_id
    FROM claims c JOIN tasks t ON t.task_id = c.task_id
    WHERE c.expires_at <= now_ms ORDER BY c.expires_at, t.rank, c.task_id LIMIT most;
END $$;

CREATE FUNCTION holdfast.extend(given_now bigint, lease_ms bigint, ids uuid[], tokens text[], progresses bytea[]) RETURNS TABLE(held boolean, cancel_requested boolean, reason text)
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    RETURN QUERY
    WITH given AS MATERIALIZED (
        SELECT id, token, progress, place
        FROM unnest(ids, tokens, progresses) WITH ORDINALITY u (id, token, progress, place)
    ), merged AS (
        -- By id, so that two batches never wait for each other; of what was sent twice, the last counts.
        SELECT id, token, (array_agg(progress ORDER BY place DESC) FILTER (WHERE progress IS NOT NULL))[1] AS progress
        FROM given GROUP BY id, token ORDER BY id
    ), renewed AS (
        UPDATE claims c
        SET expires_at = greatest(c.expires_at, now_ms + lease_ms), progress = coalesce(g.progress, c.progress)
        FROM merged g WHERE c.task_id = g.id AND (c.epoch || '.' || c.deliveries || '.' || c.claim_id) = g.token
        RETURNING c.task_id, g.token, c.cancel_requested
    )
    SELECT r.task_id IS NOT NULL, coalesce(r.cancel_requested, false),
           CASE WHEN r.task_id IS NOT NULL THEN '' WHEN t.task_id IS NULL THEN 'unknown' ELSE 'stale_claim' END
    FROM given g
    LEFT JOIN renewed r ON r.task_id = g.id AND r.token = g.token
    LEFT JOIN tasks t ON t.task_id = g.id
    ORDER BY g.place;
END $$;

CREATE FUNCTION holdfast.find(states text[], queue_name text, type_name text, worker text, failed_with text, before uuid, most integer) RETURNS TABLE(task_id text)
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
    numbers integer[];
    parts text[] := '{}';
    filters text := ' WHERE true';
BEGIN
    IF queue_name IS NOT NULL OR type_name IS NOT NULL THEN
        SELECT coalesce(array_agg(lane), '{}') INTO numbers FROM lanes
        WHERE (queue_name IS NULL OR queue = queue_name) AND (type_name IS NULL OR type = type_name);
        filters := filters || ' AND x.lane = ANY ($1)';
    END IF;
    IF before IS NOT NULL THEN
        filters := filters || ' AND x.task_id < $2';
    END IF;
    IF failed_with IS NOT NULL THEN
        filters := filters || ' AND $3 = (SELECT error_type FROM attempts a WHERE a.task_id = x.task_id ORDER BY delivery DESC LIMIT 1)';
    END IF;
    IF states IS NULL AND worker IS NULL THEN
        parts := ARRAY['tasks x' || filters];
    ELSE
        IF states IS NULL OR 'claimed' = ANY (states) THEN
            parts := parts || ('claims x' || filters || CASE WHEN worker IS NULL THEN '' ELSE ' AND x.worker_id = $4' END);
        END IF;
        IF worker IS NULL THEN
            IF 'ready' = ANY (states) THEN
                parts := parts || ('ready x' || filters);
            END IF;
            IF 'scheduled' = ANY (states) OR 'retry_pending' = ANY (states) THEN
                parts := parts || ('scheduled x' || filters
                                   || ' AND CASE WHEN x.is_retry THEN ''retry_pending'' ELSE ''scheduled'' END = ANY ($5)');
            END IF;
            IF states && ARRAY['cancelled', 'dead_lettered', 'failed', 'succeeded'] THEN
                parts := parts || ('finished x' || filters || ' AND x.state = ANY ($5)');
            END IF;
        END IF;
    END IF;
    IF cardinality(parts) > 0 THEN
        RETURN QUERY EXECUTE
            'SELECT encode(uuid_send(task_id), ''hex'') FROM ('
            || (SELECT string_agg(format('(SELECT task_id FROM %s ORDER BY task_id DESC LIMIT $6)', part), ' UNION ALL ')
                FROM unnest(parts) part)
            || ') found ORDER BY task_id DESC LIMIT $6'
            USING numbers, before, failed_with, worker, states, most;
    END IF;
END $_$;

CREATE FUNCTION holdfast.forget(ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    WITH gone AS (
        DELETE FROM finished WHERE task_id = ANY (ids) RETURNING lane, state
    )
    INSERT INTO tally (lane, state, number) SELECT lane, state, -count(*) FROM gone GROUP BY lane, state;
    DELETE FROM requests q USING tasks t, lanes l
    WHERE t.task_id = ANY (ids) AND t.request_id IS NOT NULL AND l.lane = t.lane
      AND q.queue = l.queue AND q.request_id = t.request_id AND q.task_id = t.task_id;
    DELETE FROM attempts WHERE task_id = ANY (ids);
    DELETE FROM tasks WHERE task_id = ANY (ids);
END $$;

CREATE FUNCTION holdfast.forget_kept(now_ms bigint, most integer) RETURNS integer
    LANGUAGE plpgsql
    AS $$
DECLARE
    gone integer;
BEGIN
    DELETE FROM kept WHERE key = ANY (ARRAY(
        SELECT key FROM kept WHERE expires_at <= now_ms ORDER BY expires_at LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;

CREATE FUNCTION holdfast.get(ids uuid[]) RETURNS TABLE(task_id text, type text, queue text, state text, priority integer, attempt integer, deliveries integer, created_at bigint, run_at bigint, finished_at bigint, worker_id text, claimed_at bigint, expires_at bigint, cancel_requested boolean, progress bytea, reason text, request_id text, payload bytea, headers text, policy text, result bytea, history json)
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT encode(uuid_send(s.task_id), 'hex'), s.type, s.queue, s.state, s.priority, s.attempt, s.deliveries, s.created_at, s.run_at,
           s.finished_at, s.worker_id, s.claimed_at, s.expires_at, s.cancel_requested, s.progress, s.reason, s.request_id,
           s.payload, s.headers, s.policy, s.result,
           (SELECT json_agg(json_build_array(a.delivery, a.attempt, a.worker_id, a.outcome, a.started_at, a.ended_at, a.error)
                            ORDER BY a.delivery) FROM attempts a WHERE a.task_id = s.task_id)
    FROM unnest(ids) u (id) JOIN standing s ON s.task_id = u.id;
END $$;

CREATE FUNCTION holdfast.get_kept(given_now bigint, given_key text) RETURNS TABLE(value bytea)
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    RETURN QUERY SELECT k.value FROM kept k WHERE k.key = given_key AND k.expires_at > now_ms;
END $$;

CREATE FUNCTION holdfast.get_map() RETURNS TABLE(map bytea)
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT map FROM partition_map;
END $$;

CREATE FUNCTION holdfast.held_epoch() RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    current bigint;
BEGIN
    SELECT epoch INTO current FROM duties WHERE name = 'upkeep' FOR SHARE;
    RETURN coalesce(current, 0);
END $$;

CREATE FUNCTION holdfast.hold_duty(given_now bigint, duty text, asker text, ttl_ms bigint) RETURNS TABLE(holder text, epoch bigint, held boolean, expires_in_ms bigint)
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint;
    found duties;
    running boolean;
BEGIN
    INSERT INTO duties (name, owner, epoch, expires_at) VALUES (duty, '', 0, 0) ON CONFLICT DO NOTHING;
    SELECT * INTO found FROM duties WHERE name = duty FOR UPDATE;
    -- Read when nobody else can change it any more.
    now_ms := time_ms(given_now);
    running := found.expires_at > now_ms;
    IF running AND found.owner <> asker THEN
        RETURN QUERY SELECT found.owner, found.epoch, false, found.expires_at - now_ms;
    ELSIF ttl_ms <= 0 THEN
        IF running THEN
            UPDATE duties SET expires_at = now_ms WHERE name = duty;
        END IF;
        RETURN QUERY SELECT '', found.epoch, false, 0::bigint;
    ELSE
        found.epoch := found.epoch + (NOT running)::integer;
        UPDATE duties SET owner = asker, epoch = found.epoch, expires_at = now_ms + ttl_ms WHERE name = duty;
        RETURN QUERY SELECT asker, found.epoch, true, ttl_ms;
    END IF;
END $$;

CREATE FUNCTION holdfast.home() RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RETURN (SELECT oid FROM pg_database WHERE datname = current_database()) || '.' || 'migrations'::regclass::oid || '.'
           || (SELECT extract(epoch FROM min(applied_at)) FROM migrations);
END $$;

CREATE FUNCTION holdfast.keep(given_now bigint, given_key text, given_value bytea, ttl_ms bigint, id uuid, given_token text) RETURNS TABLE(value bytea, reason text)
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    reason := '';
    IF id IS NOT NULL THEN
        -- Nobody takes the claim away before this is committed; a heartbeat need not wait for it.
        PERFORM FROM claims c WHERE c.task_id = id AND (c.epoch || '.' || c.deliveries || '.' || c.claim_id) = given_token FOR KEY SHARE;
        IF NOT FOUND THEN
            reason := CASE WHEN EXISTS (SELECT FROM tasks t WHERE t.task_id = id) THEN 'stale_claim' ELSE 'unknown' END;
        END IF;
    END IF;
    IF reason = '' THEN
        INSERT INTO kept AS k (key, expires_at, value) VALUES (given_key, now_ms + ttl_ms, given_value)
        ON CONFLICT (key) DO UPDATE SET expires_at = excluded.expires_at, value = excluded.value WHERE k.expires_at <= now_ms;
    END IF;
    RETURN QUERY SELECT (SELECT k.value FROM kept k WHERE k.key = given_key AND k.expires_at > now_ms), reason;
END $$;

CREATE FUNCTION holdfast.known_tasks(ids uuid[], payloads bytea[], shape_of integer[], types text[], recorded uuid[]) RETURNS TABLE(outcome text, place integer, number bigint, known_id text, known_type text)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT CASE WHEN l.type = types[coalesce(u.shape, 1)] AND t.payload = u.payload THEN 'known' ELSE 'task_id' END,
           u.place::integer, NULL::bigint, encode(uuid_send(u.id), 'hex'), l.type
    FROM unnest(ids, payloads, shape_of) WITH ORDINALITY u (id, payload, shape, place)
    JOIN tasks t ON t.task_id = u.id
    JOIN lanes l ON l.lane = t.lane
    WHERE NOT (t.task_id = ANY (recorded) AND array_position(ids, u.id) = u.place);
END $$;

CREATE FUNCTION holdfast.lane_names() RETURNS TABLE(lane integer, queue text, type text, priority integer)
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT lane, queue, type, priority FROM lanes;
END $$;

CREATE FUNCTION holdfast.lanes_of(queues text[], types text[], priorities integer[]) RETURNS integer[]
    LANGUAGE plpgsql
    AS $$
DECLARE
    found integer[];
BEGIN
    FOR tries IN 1..2 LOOP
        SELECT array_agg(l.lane ORDER BY s.place) INTO found
        FROM unnest(queues, types, priorities) WITH ORDINALITY s (queue, type, priority, place)
        LEFT JOIN LATERAL (
            SELECT min(k.lane) AS lane FROM lanes k
            WHERE k.queue = s.queue AND k.type = s.type AND k.priority = s.priority
        ) l ON true;
        EXIT WHEN array_position(found, NULL) IS NULL;
        INSERT INTO lanes (queue, type, priority)
        SELECT DISTINCT queue, type, priority FROM unnest(queues, types, priorities, found) s (queue, type, priority, lane)
        WHERE lane IS NULL;
    END LOOP;
    RETURN found;
END $$;

CREATE FUNCTION holdfast.leave(id uuid, state_name text, lane_number integer, place bigint) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF state_name = 'ready' THEN
        DELETE FROM ready WHERE lane = lane_number AND rank = place AND task_id = id;
    ELSIF state_name IN ('scheduled', 'retry_pending') THEN
        DELETE FROM scheduled WHERE task_id = id AND is_retry = (state_name = 'retry_pending');
    ELSE
        DELETE FROM finished WHERE task_id = id AND state = state_name;
        IF FOUND THEN
            PERFORM count_finished(lane_number, state_name, -1);
            RETURN true;
        END IF;
    END IF;
    RETURN FOUND;
END $$;

CREATE FUNCTION holdfast.make_safe(level text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    current text := current_setting('synchronous_commit');
BEGIN
    IF current = 'off' OR level <> 'local' AND current IN ('local', 'remote_write') THEN
        PERFORM set_config('synchronous_commit', CASE level WHEN 'local' THEN 'local' ELSE 'on' END, true);
    END IF;
    RETURN level <> 'strict' OR current_setting('synchronous_standby_names') <> '';
END $$;

CREATE FUNCTION holdfast.move_one(t holdfast.standing, c holdfast.change, now_ms bigint) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    new_state text := target(t.state, c.event, false);
    place bigint := t.rank;
BEGIN
    IF new_state = 'claimed' THEN
        UPDATE claims SET cancel_requested = true, reason = c.reason
        WHERE task_id = t.task_id AND deliveries = t.deliveries;
        RETURN CASE WHEN FOUND THEN new_state END;
    END IF;
    IF NOT leave(t.task_id, t.state, t.lane, t.rank) THEN
        RETURN NULL;
    END IF;
    IF new_state = 'gone' THEN
        PERFORM discard_one(t, c.reason, now_ms);
        RETURN new_state;
    END IF;
    IF c.event = 'replay' THEN
        place := now_ms - t.priority * 60000::bigint;
        UPDATE tasks SET rank = place WHERE task_id = t.task_id;
    END IF;
    PERFORM enter(t.task_id, new_state, t.lane, place, NULL, CASE WHEN c.event = 'replay' THEN 0 ELSE t.attempt END,
                  t.deliveries, now_ms, c.reason);
    RETURN new_state;
END $$;

CREATE FUNCTION holdfast.newer_map(known bigint) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
BEGIN
    RETURN (SELECT version FROM partition_map WHERE version > known);
END $$;

CREATE FUNCTION holdfast.open_lanes(queue_name text, known_types text[], floor_lanes integer[], floor_turns integer[], floor_ranks bigint[], floor_ids uuid[], OUT numbers integer[], OUT turns integer[], OUT floors bigint[], OUT ranks bigint[], OUT ids uuid[]) RETURNS record
    LANGUAGE plpgsql
    AS $$
BEGIN
    SELECT array_agg(l.lane), array_agg(l.turn), array_agg(l.floor), array_agg(coalesce(f.rank, l.floor)),
           array_agg(coalesce(f.id, '00000000-0000-0000-0000-000000000000'::uuid))
    INTO numbers, turns, floors, ranks, ids
    FROM lanes l
    LEFT JOIN unnest(floor_lanes, floor_turns, floor_ranks, floor_ids) f (lane, turn, rank, id)
        ON f.lane = l.lane AND f.turn = l.turn AND f.rank >= l.floor
    WHERE l.queue = queue_name AND (known_types IS NULL OR l.type = ANY (known_types))
      AND EXISTS (SELECT FROM ready r
                  WHERE r.lane = l.lane AND (r.rank, r.task_id) >= (coalesce(f.rank, l.floor), coalesce(f.id, '00000000-0000-0000-0000-000000000000'::uuid)));
END $$;

CREATE FUNCTION holdfast.outcome_of(id uuid, given_token text) RETURNS TABLE(outcome text)
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
BEGIN
    PERFORM FROM claims c WHERE c.task_id = id AND (c.epoch || '.' || c.deliveries || '.' || c.claim_id) = given_token FOR UPDATE;
    IF FOUND THEN
        RETURN QUERY SELECT 'claimed'::text;
        RETURN;
    END IF;
    PERFORM FROM finished c WHERE c.task_id = id AND c.state = 'succeeded' AND (c.epoch || '.' || c.deliveries || '.' || c.claim_id) = given_token FOR UPDATE;
    RETURN QUERY SELECT CASE WHEN FOUND THEN 'succeeded'::text ELSE 'lost' END;
END $$;

CREATE FUNCTION holdfast.pause(queue_name text, stops boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
BEGIN
    IF stops THEN
        INSERT INTO paused (queue) VALUES (queue_name) ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM paused WHERE queue = queue_name;
    END IF;
END $$;

CREATE FUNCTION holdfast.promote(given_now bigint, given_epoch bigint, most integer, tidies boolean) RETURNS TABLE(current_epoch bigint, promoted integer, next_due_in_ms bigint, bells text[])
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
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
            SELECT g.lane, g.due - l.priority * 60000::bigint, g.task_id, g.attempt, g.deliveries
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

CREATE FUNCTION holdfast.prune(given_now bigint, given_epoch bigint, states text[], ages bigint[], keep bigint, discards_ms bigint, silent_ms bigint, most integer) RETURNS TABLE(current_epoch bigint, pruned integer)
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
    ids uuid[] := '{}';
    more uuid[];
    surplus bigint;
BEGIN
    pruned := 0;
    current_epoch := held_epoch();
    IF current_epoch <> given_epoch THEN
        RETURN NEXT;
        RETURN;
    END IF;
    FOR n IN 1..cardinality(states) LOOP
        SELECT array_agg(task_id) INTO more FROM (
            SELECT task_id FROM finished WHERE state = states[n] AND finished_at <= now_ms - ages[n]
            ORDER BY finished_at LIMIT most - cardinality(ids) FOR UPDATE SKIP LOCKED
        ) old;
        ids := ids || coalesce(more, '{}');
    END LOOP;
    IF cardinality(ids) = 0 THEN
        FOR n IN 1..cardinality(states) LOOP
            SELECT coalesce(sum(number), 0) - keep INTO surplus FROM tally WHERE state = states[n];
            CONTINUE WHEN surplus <= 0;
            SELECT array_agg(task_id) INTO more FROM (
                SELECT task_id FROM finished WHERE state = states[n]
                ORDER BY finished_at LIMIT least(surplus, most - cardinality(ids)) FOR UPDATE SKIP LOCKED
            ) old;
            ids := ids || coalesce(more, '{}');
        END LOOP;
    END IF;
    pruned := cardinality(ids);
    IF pruned > 0 THEN
        PERFORM forget(ids);
    END IF;
    pruned := pruned + forget_kept(now_ms, most - pruned);
    DELETE FROM discards WHERE number IN (
        SELECT number FROM discards WHERE discarded_at <= now_ms - discards_ms ORDER BY number LIMIT most);
    DELETE FROM workers WHERE expires_at <= now_ms - silent_ms;
    RETURN NEXT;
END $$;

CREATE FUNCTION holdfast.put_map(old_version bigint, new_version bigint, new_map bytea) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
BEGIN
    IF old_version = 0 THEN
        INSERT INTO partition_map (version, map) VALUES (new_version, new_map) ON CONFLICT DO NOTHING;
    ELSE
        UPDATE partition_map SET version = new_version, map = new_map WHERE version = old_version;
    END IF;
    RETURN FOUND;
END $$;

CREATE FUNCTION holdfast.raise_floor(lane_number integer, at_turn integer, to_rank bigint) RETURNS void
    LANGUAGE sql
    AS $$
    UPDATE lanes SET floor = to_rank
    WHERE lane = (SELECT lane FROM lanes WHERE lane = lane_number AND turn = at_turn FOR UPDATE SKIP LOCKED)
$$;

CREATE FUNCTION holdfast.record_one(now_ms bigint, id uuid, payload bytea, headers text, policy text, request text, queue_name text, lane_number integer, due_at bigint, place bigint) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
BEGIN
    IF request IS NOT NULL THEN
        INSERT INTO requests (queue, request_id, task_id) VALUES (queue_name, request, id) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    INSERT INTO tasks (task_id, lane, rank, created_at, request_id, headers, policy, payload)
    VALUES (id, lane_number, place, now_ms, request, record_one.headers, record_one.policy, record_one.payload)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        DELETE FROM requests q WHERE q.queue = queue_name AND q.request_id = request AND q.task_id = id;
        RETURN false;
    END IF;
    IF due_at <= now_ms THEN
        INSERT INTO ready (lane, rank, task_id) VALUES (lane_number, place, id);
    ELSE
        INSERT INTO scheduled (task_id, due, lane) VALUES (id, due_at, lane_number);
    END IF;
    RETURN true;
END $$;

CREATE FUNCTION holdfast.reserve(given_now bigint, map_version bigint, ids uuid[], tokens text[], results bytea[], others json, other_results bytea[], claim text, worker text, call text, queues text[], limits integer[], max_tasks integer, lease_ms bigint, known_types text[], floor_lanes integer[], floor_turns integer[], floor_ranks bigint[], floor_ids uuid[]) RETURNS TABLE(kind text, lane integer, task_id text, attempt integer, deliveries integer, number bigint, created_at bigint, payload bytea, headers text, policy text)
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
    newer bigint := newer_map(map_version);
    current_epoch bigint;
    closed text[];
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
    holds := EXISTS (SELECT FROM claims c WHERE c.claim_id = claim);
    IF NOT holds OR (call IS NOT NULL AND NOT EXISTS (SELECT FROM claims c WHERE c.claim_id = claim AND c.call_id = call)) THEN
        current_epoch := upkeep_epoch();
        SELECT array_agg(queue) INTO closed FROM paused;
        FOR round IN 1..2 LOOP
            FOR n IN 1..cardinality(queues) LOOP
                CONTINUE WHEN queues[n] = ANY (closed) OR (round = 2 AND limits[n] >= max_tasks);
                wanted := CASE round WHEN 1 THEN least(limits[n], left_over) ELSE left_over END;
                CONTINUE WHEN wanted <= 0;
                sight := open_lanes(queues[n], known_types, floor_lanes, floor_turns, floor_ranks, floor_ids);
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
                    got := take_from_lanes(wanted, sight.numbers, sight.ranks, sight.ids, claim, worker, call, current_epoch, given_now,
                                           lease_ms);
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
                    IF part.first_rank > sight.floors[place] + 1000 THEN
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
                sight := open_lanes(queue_name, NULL, floor_lanes, floor_turns, floor_ranks, floor_ids);
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
        SELECT 'task', c.lane, encode(uuid_send(c.task_id), 'hex'), c.attempt, c.deliveries, c.epoch, t.created_at, t.payload,
               t.headers, t.policy
        FROM claims c JOIN tasks t ON t.task_id = c.task_id JOIN lanes l ON l.lane = c.lane
        WHERE c.claim_id = claim
        ORDER BY array_position(queues, l.queue), t.rank, t.task_id;
    ELSIF left_over < max_tasks THEN
        RETURN QUERY
        SELECT 'task', (alone.got).lane, encode(uuid_send(t.task_id), 'hex'), u.attempt, u.deliveries, current_epoch, t.created_at, t.payload,
               t.headers, t.policy
        FROM unnest(alone.ids, alone.attempts, alone.deliveries) u (id, attempt, deliveries) JOIN tasks t ON t.task_id = u.id;
    END IF;
END $$;

CREATE FUNCTION holdfast.ring(names text[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    name text;
    waiter record;
BEGIN
    FOR name IN SELECT DISTINCT each FROM unnest(names) AS each
                WHERE NOT EXISTS (SELECT FROM unheard WHERE bell = each) ORDER BY each
    LOOP
        -- With the same lock in attend: either this ring sees the waiter, or the waiter sees the mark.
        PERFORM pg_advisory_xact_lock('waiting'::regclass::integer, hashtext(name));
        LOOP
            DELETE FROM waiting WHERE bell = name AND channel = (
                SELECT channel FROM waiting WHERE bell = name LIMIT 1
            ) RETURNING channel, backend INTO waiter;
            IF NOT FOUND THEN
                INSERT INTO unheard VALUES (name) ON CONFLICT DO NOTHING;
                EXIT;
            END IF;
            -- Those who were killed could not sign off.
            IF EXISTS (SELECT FROM pg_stat_get_activity(waiter.backend)) THEN
                PERFORM pg_notify(waiter.channel, name);
                EXIT;
            END IF;
        END LOOP;
    END LOOP;
END
$$;

CREATE FUNCTION holdfast.settle_one(t holdfast.standing, c holdfast.change, now_ms bigint) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    claim claims;
    new_state text;
    spared integer := (c.event IN ('release', 'snooze'))::integer;
    place bigint := t.rank;
    due_at bigint;
BEGIN
    DELETE FROM claims WHERE task_id = t.task_id AND deliveries = t.deliveries AND (NOT c.lapsed_only OR expires_at <= now_ms)
    RETURNING * INTO claim;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    new_state := target('claimed', c.event, claim.cancel_requested);
    INSERT INTO attempts (task_id, delivery, attempt, token, worker_id, event, outcome, started_at, ended_at, error_type, error)
    VALUES (t.task_id, claim.deliveries, claim.attempt, t.token, claim.worker_id, c.event, c.outcome, claim.claimed_at, now_ms,
            c.error_type, c.error);
    IF new_state IN ('scheduled', 'retry_pending') THEN
        due_at := now_ms + c.delay_ms;
        place := due_at - t.priority * 60000::bigint;
        UPDATE tasks SET rank = place WHERE task_id = t.task_id;
    END IF;
    PERFORM enter(t.task_id, new_state, t.lane, place, due_at, claim.attempt - spared, claim.deliveries, now_ms,
                  CASE WHEN new_state = 'cancelled' THEN coalesce(c.reason, claim.reason) ELSE c.reason END);
    RETURN new_state;
END $$;

CREATE FUNCTION holdfast.sign_off(on_channel text) RETURNS void
    LANGUAGE sql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    AS $$
    DELETE FROM waiting WHERE channel = on_channel
$$;

CREATE FUNCTION holdfast.sign_on() RETURNS void
    LANGUAGE sql
    SET search_path TO 'holdfast', 'pg_catalog', 'pg_temp'
    AS $$
    DELETE FROM waiting WHERE (bell, channel) IN (
        SELECT bell, channel FROM waiting
        WHERE NOT EXISTS (SELECT FROM pg_stat_get_activity(NULL) AS living WHERE living.pid = backend)
        FOR UPDATE SKIP LOCKED
    )
$$;

CREATE FUNCTION holdfast.sum_up() RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    WITH gone AS (
        DELETE FROM tally WHERE ctid = ANY (ARRAY(SELECT ctid FROM tally FOR UPDATE SKIP LOCKED)) RETURNING lane, state, number
    )
    INSERT INTO tally (lane, state, number)
    SELECT lane, state, sum(number) FROM gone GROUP BY lane, state HAVING sum(number) <> 0;
END $$;

CREATE FUNCTION holdfast.sweep() RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    WITH left_behind AS MATERIALIZED (
        SELECT l.lane, first.rank FROM lanes l
        CROSS JOIN LATERAL (SELECT r.rank FROM ready r WHERE r.lane = l.lane ORDER BY r.rank, r.task_id LIMIT 1) first
        WHERE first.rank < l.floor
        ORDER BY l.lane FOR UPDATE OF l
    )
    UPDATE lanes l SET floor = b.rank, turn = turn + 1 FROM left_behind b WHERE l.lane = b.lane;
END $$;

CREATE FUNCTION holdfast.take_from_lane(wanted integer, lane_number integer, from_rank bigint, from_id uuid, by_claim text, by_worker text, by_call text, under_epoch bigint, given_now bigint, lease_ms bigint, OUT got holdfast.share, OUT ids uuid[], OUT attempts integer[], OUT deliveries integer[]) RETURNS record
    LANGUAGE plpgsql
    AS $$
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
    SELECT array_agg(p.task_id), array_agg(p.attempt + 1), array_agg(p.deliveries + 1), min(p.rank), max(p.rank)
    INTO ids, attempts, deliveries, got.first_rank, got.last_rank
    FROM picked p;
    got.lane := lane_number;
    got.taken := coalesce(cardinality(ids), 0);
    got.last_id := ids[got.taken];
END $$;

CREATE FUNCTION holdfast.take_from_lanes(wanted integer, numbers integer[], from_ranks bigint[], from_ids uuid[], by_claim text, by_worker text, by_call text, under_epoch bigint, given_now bigint, lease_ms bigint) RETURNS holdfast.share[]
    LANGUAGE plpgsql
    AS $$
DECLARE
    got share[];
    more share[];
    taken integer;
    seen integer;
BEGIN
    WITH moment AS MATERIALIZED (SELECT time_ms(given_now) AS now_ms), candidates AS MATERIALIZED (
        SELECT r.place FROM unnest(numbers, from_ranks, from_ids) f (lane, rank, id)
        CROSS JOIN LATERAL (
            SELECT ctid AS place, ready.rank, ready.task_id FROM ready
            WHERE ready.lane = f.lane AND (ready.rank, ready.task_id) >= (f.rank, f.id)
            ORDER BY ready.rank, ready.task_id LIMIT wanted
        ) r ORDER BY r.rank, r.task_id LIMIT wanted
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
        SELECT r.* FROM unnest(numbers, from_ranks, from_ids) f (lane, rank, id)
        CROSS JOIN LATERAL (
            SELECT ctid AS place, ready.* FROM ready
            WHERE ready.lane = f.lane AND (ready.rank, ready.task_id) >= (f.rank, f.id)
            ORDER BY ready.rank, ready.task_id LIMIT wanted - taken
            FOR UPDATE SKIP LOCKED
        ) r
    ), picked AS MATERIALIZED (
        SELECT * FROM locked ORDER BY rank, task_id LIMIT wanted - taken
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

CREATE FUNCTION holdfast.target(state text, event text, cancel_requested boolean) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT CASE WHEN cancel_requested AND event IN ('release', 'requeue', 'retry', 'snooze') THEN 'cancelled' ELSE CASE state || ' ' || event WHEN 'blocked unblock' THEN 'ready' WHEN 'blocked cancel' THEN 'cancelled' WHEN 'scheduled promote' THEN 'ready' WHEN 'scheduled cancel' THEN 'cancelled' WHEN 'ready reserve' THEN 'claimed' WHEN 'ready cancel' THEN 'cancelled' WHEN 'claimed ack' THEN 'succeeded' WHEN 'claimed retry' THEN 'retry_pending' WHEN 'claimed fail' THEN 'failed' WHEN 'claimed bury' THEN 'dead_lettered' WHEN 'claimed snooze' THEN 'scheduled' WHEN 'claimed release' THEN 'ready' WHEN 'claimed requeue' THEN 'ready' WHEN 'claimed stop' THEN 'cancelled' WHEN 'claimed cancel' THEN 'claimed' WHEN 'retry_pending promote' THEN 'ready' WHEN 'retry_pending cancel' THEN 'cancelled' WHEN 'failed replay' THEN 'ready' WHEN 'failed discard' THEN 'gone' WHEN 'dead_lettered replay' THEN 'ready' WHEN 'dead_lettered discard' THEN 'gone' END END
$$;

CREATE FUNCTION holdfast.time_ms(given bigint) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
BEGIN
    RETURN coalesce(given, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
END $$;

CREATE FUNCTION holdfast.turn(numbers integer[], ranks bigint[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF cardinality(numbers) > 0 THEN
        -- Locked in one order, so that two of these never wait for each other.
        PERFORM FROM lanes WHERE lane = ANY (numbers) ORDER BY lane FOR UPDATE;
        UPDATE lanes l SET turn = l.turn + 1, floor = least(l.floor, lowest.rank)
        FROM (SELECT lane, min(rank) AS rank FROM unnest(numbers, ranks) u (lane, rank) GROUP BY lane) lowest
        WHERE l.lane = lowest.lane;
    END IF;
END $$;

CREATE FUNCTION holdfast.upkeep_epoch() RETURNS bigint
    LANGUAGE plpgsql
    AS $$
BEGIN
    RETURN coalesce((SELECT epoch FROM duties WHERE name = 'upkeep'), 0);
END $$;

CREATE FUNCTION holdfast.was_settled(id uuid, state text, current text, given_token text, given_event text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF state = 'succeeded' AND current = given_token THEN
        RETURN given_event = 'ack';
    END IF;
    RETURN EXISTS (SELECT FROM attempts a WHERE a.task_id = id AND a.token = given_token AND a.event = given_event);
END $$;

CREATE TABLE holdfast.attempts (
    task_id uuid NOT NULL,
    delivery integer NOT NULL,
    attempt integer NOT NULL,
    token text NOT NULL COLLATE pg_catalog."C",
    worker_id text NOT NULL COLLATE pg_catalog."C",
    event text NOT NULL COLLATE pg_catalog."C",
    outcome text NOT NULL,
    started_at bigint NOT NULL,
    ended_at bigint NOT NULL,
    error_type text,
    error text
);

CREATE TABLE holdfast.discards (
    number bigint NOT NULL,
    task_id uuid NOT NULL,
    type text NOT NULL COLLATE pg_catalog."C",
    queue text NOT NULL COLLATE pg_catalog."C",
    payload bytea NOT NULL,
    reason text NOT NULL,
    error text NOT NULL,
    discarded_at bigint NOT NULL
);

ALTER TABLE holdfast.discards ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME holdfast.discards_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE holdfast.duties (
    name text NOT NULL COLLATE pg_catalog."C",
    owner text NOT NULL COLLATE pg_catalog."C",
    epoch bigint NOT NULL,
    expires_at bigint NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE holdfast.kept (
    key text NOT NULL COLLATE pg_catalog."C",
    expires_at bigint NOT NULL,
    value bytea NOT NULL
);

ALTER TABLE holdfast.lanes ALTER COLUMN lane ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME holdfast.lanes_lane_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE holdfast.migrations (
    number integer NOT NULL,
    name text NOT NULL,
    oldest_code integer NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE holdfast.partition_map (
    only_row boolean DEFAULT true NOT NULL,
    version bigint NOT NULL,
    map bytea NOT NULL,
    CONSTRAINT partition_map_only_row_check CHECK (only_row)
);

CREATE TABLE holdfast.paused (
    queue text NOT NULL COLLATE pg_catalog."C"
);

CREATE TABLE holdfast.requests (
    queue text NOT NULL COLLATE pg_catalog."C",
    request_id text NOT NULL COLLATE pg_catalog."C",
    task_id uuid NOT NULL
);

CREATE TABLE holdfast.tally (
    lane integer NOT NULL,
    state text NOT NULL COLLATE pg_catalog."C",
    number bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');

CREATE UNLOGGED TABLE holdfast.unheard (
    bell text NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');

CREATE UNLOGGED TABLE holdfast.waiting (
    bell text NOT NULL,
    channel text NOT NULL,
    backend integer NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');

CREATE TABLE holdfast.workers (
    worker_id text NOT NULL COLLATE pg_catalog."C",
    record bytea NOT NULL,
    started_at bigint NOT NULL,
    seen_at bigint NOT NULL,
    expires_at bigint NOT NULL
)
WITH (fillfactor='50');

ALTER TABLE ONLY holdfast.attempts
    ADD CONSTRAINT attempts_pkey PRIMARY KEY (task_id, delivery);

ALTER TABLE ONLY holdfast.claims
    ADD CONSTRAINT claims_pkey PRIMARY KEY (task_id);

ALTER TABLE ONLY holdfast.discards
    ADD CONSTRAINT discards_pkey PRIMARY KEY (number);

ALTER TABLE ONLY holdfast.duties
    ADD CONSTRAINT duties_pkey PRIMARY KEY (name);

ALTER TABLE ONLY holdfast.finished
    ADD CONSTRAINT finished_pkey PRIMARY KEY (task_id);

ALTER TABLE ONLY holdfast.kept
    ADD CONSTRAINT kept_pkey PRIMARY KEY (key);

ALTER TABLE ONLY holdfast.lanes
    ADD CONSTRAINT lanes_pkey PRIMARY KEY (lane);

ALTER TABLE ONLY holdfast.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (number);

ALTER TABLE ONLY holdfast.partition_map
    ADD CONSTRAINT partition_map_pkey PRIMARY KEY (only_row);

ALTER TABLE ONLY holdfast.paused
    ADD CONSTRAINT paused_pkey PRIMARY KEY (queue);

ALTER TABLE ONLY holdfast.ready
    ADD CONSTRAINT ready_pkey PRIMARY KEY (lane, rank, task_id);

ALTER TABLE ONLY holdfast.requests
    ADD CONSTRAINT requests_pkey PRIMARY KEY (queue, request_id);

ALTER TABLE ONLY holdfast.scheduled
    ADD CONSTRAINT scheduled_pkey PRIMARY KEY (task_id);

ALTER TABLE ONLY holdfast.tasks
    ADD CONSTRAINT tasks_pkey PRIMARY KEY (task_id);

ALTER TABLE ONLY holdfast.unheard
    ADD CONSTRAINT unheard_pkey PRIMARY KEY (bell);

ALTER TABLE ONLY holdfast.waiting
    ADD CONSTRAINT waiting_pkey PRIMARY KEY (bell, channel);

ALTER TABLE ONLY holdfast.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (worker_id);

CREATE INDEX claims_claim_id ON holdfast.claims USING btree (claim_id);

CREATE INDEX finished_cancelled_age ON holdfast.finished USING btree (finished_at) WHERE (state = 'cancelled'::text);

CREATE INDEX finished_dead_lettered_age ON holdfast.finished USING btree (finished_at) WHERE (state = 'dead_lettered'::text);

CREATE INDEX finished_failed_age ON holdfast.finished USING btree (finished_at) WHERE (state = 'failed'::text);

CREATE INDEX finished_succeeded_age ON holdfast.finished USING btree (finished_at) WHERE (state = 'succeeded'::text);

CREATE INDEX kept_expires_at ON holdfast.kept USING btree (expires_at);

CREATE INDEX lanes_names ON holdfast.lanes USING btree (queue, type, priority);

CREATE INDEX scheduled_due ON holdfast.scheduled USING btree (due);

INSERT INTO holdfast.migrations (number, name, oldest_code) VALUES (1, '0001_tables', 1), (2, '0002_functions', 1);
