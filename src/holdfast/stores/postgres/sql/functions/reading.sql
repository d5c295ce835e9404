-- Reading: nothing here changes anything.

CREATE OR REPLACE FUNCTION lane_names(numbers integer[]) RETURNS TABLE (lane integer, queue text, type text, priority integer)
LANGUAGE plpgsql {look} AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT lane, queue, type, priority FROM lanes WHERE lane = ANY (numbers);
END $$;

-- These tasks, one row each that is known: its standing, then its history as JSON.
CREATE OR REPLACE FUNCTION get(ids uuid[])
RETURNS TABLE (task_id text, type text, queue text, state text, priority integer, attempt integer, deliveries integer,
               created_at bigint, run_at bigint, finished_at bigint, worker_id text, claimed_at bigint, expires_at bigint,
               cancel_requested boolean, progress bytea, reason text, request_id text, payload bytea, headers text, policy text,
               result bytea, history json) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT encode(uuid_send(s.task_id), 'hex'), s.type, s.queue, s.state, s.priority, s.attempt, s.deliveries, s.created_at, s.run_at,
           s.finished_at, s.worker_id, s.claimed_at, s.expires_at, s.cancel_requested, s.progress, s.reason, s.request_id,
           s.payload, s.headers, s.policy, s.result,
           (SELECT json_agg(json_build_array(a.delivery, a.attempt, a.worker_id, a.outcome, a.started_at, a.ended_at, a.error)
                            ORDER BY a.delivery) FROM attempts a WHERE a.task_id = s.task_id)
    FROM unnest(ids) u (id) CROSS JOIN LATERAL (SELECT k.* FROM standing k WHERE k.task_id = u.id LIMIT 1) s;
END $$;

-- The statements that find() walks with. Each state has its table, which is walked by id; without states, or if there are others
-- beside it, the tasks themselves are walked; what failed with an error has an index.
CREATE OR REPLACE FUNCTION walks(states text[], worker text, failed_with text, filters text) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    parts text[] := '{}';
BEGIN
    IF failed_with IS NOT NULL THEN
        RETURN ARRAY[
            'SELECT a.task_id, (
                $3 = (SELECT l.error_type FROM attempts l WHERE l.task_id = a.task_id ORDER BY l.delivery DESC LIMIT 1)
                AND EXISTS (SELECT FROM standing x WHERE x.task_id = a.task_id AND ($5 IS NULL OR x.state = ANY ($5))
                            AND ($4 IS NULL OR x.state = {claimed_text} AND x.worker_id = $4) AND ' || filters || ')
             ) AS fits
             FROM (SELECT DISTINCT k.task_id FROM attempts k WHERE k.error_type = $3 AND k.task_id < $2
                   ORDER BY k.task_id DESC LIMIT $6) a'];
    ELSIF states IS NULL AND worker IS NULL THEN
        RETURN ARRAY[walk('tasks', filters)];
    END IF;
    IF states IS NULL OR {claimed} = ANY (states) THEN
        parts := parts || walk('claims', filters || CASE WHEN worker IS NULL THEN '' ELSE ' AND x.worker_id = $4' END);
    END IF;
    IF worker IS NULL THEN
        IF {ready} = ANY (states) THEN
            parts := parts || walk('ready', filters);
        END IF;
        IF {scheduled} = ANY (states) OR {retry_pending} = ANY (states) THEN
            parts := parts || walk('scheduled', filters
                                   || ' AND CASE WHEN x.is_retry THEN {retry_pending_text} ELSE {scheduled_text} END = ANY ($5)');
        END IF;
        IF states && ARRAY[{final_states}] THEN
            parts := parts || walk('finished', filters || ' AND x.state = ANY ($5)');
        END IF;
    END IF;
    RETURN parts;
END $$;

-- Ids of tasks that match, newest first, from before `before` on. A walk ends after some steps: then the last row, which is no
-- match, says how far it came.
CREATE OR REPLACE FUNCTION find(
    states text[], queue_name text, type_name text, worker text, failed_with text, before uuid, most integer
) RETURNS TABLE (task_id text, matches boolean) LANGUAGE plpgsql {look} SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    numbers integer[];
    parts text[];
    filters text := 'true';
    statement text;
    found uuid[] := '{}';
    more uuid[];
    reached uuid := coalesce(before, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid);
    edge uuid;
BEGIN
    IF queue_name IS NOT NULL OR type_name IS NOT NULL THEN
        SELECT coalesce(array_agg(lane), '{}') INTO numbers FROM lanes
        WHERE (queue_name IS NULL OR queue = queue_name) AND (type_name IS NULL OR type = type_name);
        IF cardinality(numbers) = 0 THEN
            RETURN;
        END IF;
        filters := filters || ' AND x.lane = ANY ($1)';
    END IF;
    parts := walks(states, worker, failed_with, filters);
    IF cardinality(parts) = 0 THEN
        RETURN;
    END IF;
    -- The edge is where the first part stopped: below it, another part may have more.
    statement := 'WITH seen AS MATERIALIZED ('
        || (SELECT string_agg(format('(SELECT %s AS part, p.* FROM (%s) p)', n, part), ' UNION ALL ')
            FROM unnest(parts) WITH ORDINALITY u (part, n))
        || '), edges AS (SELECT min(task_id::text)::uuid AS edge FROM seen GROUP BY part HAVING count(*) >= $6)
        SELECT (SELECT max(edge::text)::uuid FROM edges),
               ARRAY(SELECT s.task_id FROM seen s WHERE s.fits AND s.task_id >= coalesce((SELECT max(edge::text)::uuid FROM edges), {lowest_id_text})
                     ORDER BY s.task_id DESC)';
    FOR step IN 1..{find_steps} LOOP
        EXECUTE statement INTO edge, more USING numbers, reached, failed_with, worker, states, {find_step_rows};
        found := found || more;
        reached := edge;
        EXIT WHEN edge IS NULL OR cardinality(found) >= most;
    END LOOP;
    RETURN QUERY SELECT encode(uuid_send(u.id), 'hex'), true FROM unnest(found[:most]) WITH ORDINALITY u (id, n) ORDER BY u.n;
    IF reached IS NOT NULL AND cardinality(found) < most THEN
        RETURN QUERY SELECT encode(uuid_send(reached), 'hex'), false;
    END IF;
END $$;

-- The statement that walks over one table by id, for find().
CREATE OR REPLACE FUNCTION walk(table_name text, filters text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT format('SELECT x.task_id, (%s) AS fits FROM (SELECT k.* FROM %I k WHERE k.task_id < $2 ORDER BY k.task_id DESC LIMIT $6) x',
                  filters, table_name)
$$;

-- Numbers of tasks by queue and state; of ready ones also for how long the oldest has been so. A row without a state has the
-- settings of a queue that are not the defaults.
CREATE OR REPLACE FUNCTION depths(given_now bigint)
RETURNS TABLE (queue text, state text, number bigint, oldest_ms bigint, paused boolean, step_ms bigint) LANGUAGE plpgsql {look} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    RETURN QUERY
    SELECT l.queue, n.state, sum(n.number)::bigint, max(now_ms - n.rank - l.priority * {step_ms}::bigint), NULL::boolean, NULL::bigint
    FROM (
        SELECT lane, {ready} AS state, count(*) AS number, min(rank) AS rank FROM ready GROUP BY lane
        UNION ALL
        SELECT lane, {claimed}, count(*), NULL FROM claims GROUP BY lane
        UNION ALL
        SELECT lane, CASE WHEN is_retry THEN {retry_pending} ELSE {scheduled} END, count(*), NULL FROM scheduled GROUP BY 1, 2
        UNION ALL
        SELECT lane, state, sum(number), NULL FROM tally GROUP BY 1, 2
    ) n JOIN lanes l ON l.lane = n.lane
    GROUP BY l.queue, n.state HAVING sum(n.number) > 0
    UNION ALL
    SELECT queue, NULL, NULL, NULL, paused, step_ms FROM queue_settings;
END $$;
