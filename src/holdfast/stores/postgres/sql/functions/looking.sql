-- Looking: nothing here changes anything.

CREATE OR REPLACE FUNCTION lane_names() RETURNS TABLE (lane integer, queue text, type text, priority integer)
LANGUAGE plpgsql {look} AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT lane, queue, type, priority FROM lanes;
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
    FROM unnest(ids) u (id) JOIN standing s ON s.task_id = u.id;
END $$;

-- Ids of tasks that match, newest first, from before `before` on. Each state has its table, which is walked by id if it may be
-- large; without states, or if there are others beside it, the tasks themselves are walked.
CREATE OR REPLACE FUNCTION find(
    states text[], queue_name text, type_name text, worker text, failed_with text, before uuid, most integer
) RETURNS TABLE (task_id text) LANGUAGE plpgsql {look} AS $$
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
        IF states IS NULL OR {claimed} = ANY (states) THEN
            parts := parts || ('claims x' || filters || CASE WHEN worker IS NULL THEN '' ELSE ' AND x.worker_id = $4' END);
        END IF;
        IF worker IS NULL THEN
            IF {ready} = ANY (states) THEN
                parts := parts || ('ready x' || filters);
            END IF;
            IF {scheduled} = ANY (states) OR {retry_pending} = ANY (states) THEN
                parts := parts || ('scheduled x' || filters
                                   || ' AND CASE WHEN x.is_retry THEN {retry_pending_text} ELSE {scheduled_text} END = ANY ($5)');
            END IF;
            IF states && ARRAY[{final_states}] THEN
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
END $$;

-- Numbers of tasks by queue and state; of ready ones also for how long the oldest has been so. A row without a state has the
-- step of a queue that is not the usual, or else says that the queue is paused.
CREATE OR REPLACE FUNCTION depths(given_now bigint)
RETURNS TABLE (queue text, state text, number bigint, oldest_ms bigint, step_ms bigint) LANGUAGE plpgsql {look} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    RETURN QUERY
    SELECT l.queue, n.state, sum(n.number)::bigint, max(now_ms - n.rank - l.priority * {step_ms}::bigint), NULL::bigint
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
    SELECT queue, NULL, NULL, NULL, NULL FROM paused
    UNION ALL
    SELECT queue, NULL, NULL, NULL, step_ms FROM steps;
END $$;

CREATE OR REPLACE FUNCTION all_discards(most integer)
RETURNS TABLE (task_id text, type text, queue text, payload bytea, reason text, discarded_at bigint, error text)
LANGUAGE plpgsql {look} AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT encode(uuid_send(task_id), 'hex'), type, queue, payload, reason, discarded_at, error
    FROM discards ORDER BY number DESC LIMIT most;
END $$;
