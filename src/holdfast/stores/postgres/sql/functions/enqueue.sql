-- Records tasks, each at most once. `shape_of` says which of the shapes (queue, type, priority, wait, run_at) each task has,
-- NULL if all have the first. Answers only for what is worth telling, `place` counts from 1:
--   stale_map  the map is newer (number is its version), nothing was done
--   upkeep     something is due earlier than anything before
--   known      the task at `place` is known as task_id
--   task_id, request_id    it is known as something else, of this type

CREATE OR REPLACE FUNCTION lanes_of(queues text[], types text[], priorities integer[]) RETURNS integer[]
LANGUAGE plpgsql AS $$
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

CREATE OR REPLACE FUNCTION enqueue(
    given_now bigint, map_version bigint, ids uuid[], payloads bytea[], all_headers text[], policies text[], shape_of integer[],
    queues text[], types text[], priorities integer[], waits bigint[], run_ats bigint[], request_ids text[]
) RETURNS TABLE (outcome text, place integer, number bigint, known_id text, known_type text) LANGUAGE plpgsql {path} AS $$
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
        PERFORM note_deadlines(ids, policies);
        RETURN;
    END IF;
    IF first_due IS NULL THEN
        WITH new AS (
            INSERT INTO tasks (task_id, lane, rank, created_at, headers, policy, payload)
            SELECT id, lane_of[coalesce(shape, 1)], now_ms - priorities[coalesce(shape, 1)] * {step_ms}::bigint, now_ms,
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
                   due_of[coalesce(shape, 1)] - priorities[coalesce(shape, 1)] * {step_ms}::bigint, now_ms, headers, policy, payload
            FROM unnest(ids, payloads, all_headers, policies, shape_of) u (id, payload, headers, policy, shape)
            ON CONFLICT DO NOTHING
            RETURNING task_id, lane, rank
        ), placed AS MATERIALIZED (
            SELECT task_id, lane, rank, rank + priority * {step_ms}::bigint AS due FROM new JOIN lanes USING (lane)
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
    IF policies IS NOT NULL THEN
        PERFORM note_deadlines(ids, policies);
    END IF;
END $$;

-- Remembers until when these tasks must have begun, as it stands in what was recorded of them, perhaps by an earlier call.
CREATE OR REPLACE FUNCTION note_deadlines(ids uuid[], policies text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF strpos(array_to_string(policies, ''), '"expires_ms"') > 0 THEN
        INSERT INTO deadlines (starts_by, task_id)
        SELECT deadline(t.created_at, t.policy), t.task_id FROM tasks t
        WHERE t.task_id = ANY (ids) AND deadline(t.created_at, t.policy) IS NOT NULL
        ON CONFLICT DO NOTHING;
    END IF;
END $$;

-- What is there already, for each task that was not recorded just now.
CREATE OR REPLACE FUNCTION known_tasks(ids uuid[], payloads bytea[], shape_of integer[], types text[], recorded uuid[])
RETURNS TABLE (outcome text, place integer, number bigint, known_id text, known_type text) LANGUAGE plpgsql AS $$
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

-- One after the other: a task with a request_id may meet another one of the same batch.
CREATE OR REPLACE FUNCTION enqueue_each(
    now_ms bigint, ids uuid[], payloads bytea[], all_headers text[], policies text[], shape_of integer[], queues text[],
    types text[], priorities integer[], lane_of integer[], due_of bigint[], request_ids text[]
) RETURNS TABLE (outcome text, place integer, number bigint, known_id text, known_type text) LANGUAGE plpgsql AS $$
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
                                   lane_of[shape], due_of[shape], due_of[shape] - priorities[shape] * {step_ms}::bigint);
                EXIT WHEN done;
            END IF;
        END LOOP;
    END LOOP;
END $$;

-- Records one task, unless somebody else was faster.
CREATE OR REPLACE FUNCTION record_one(
    now_ms bigint, id uuid, payload bytea, headers text, policy text, request text, queue_name text, lane_number integer,
    due_at bigint, place bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
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

-- Which store this is: no two have the same, not even a copy of one.
CREATE OR REPLACE FUNCTION home() RETURNS text LANGUAGE plpgsql {look} AS $$
BEGIN
    RETURN (SELECT oid FROM pg_database WHERE datname = current_database()) || '.' || 'migrations'::regclass::oid || '.'
           || (SELECT extract(epoch FROM min(applied_at)) FROM migrations);
END $$;

-- Has the commit of this transaction wait as the durability level says, if it would wait for less; false if it cannot.
CREATE OR REPLACE FUNCTION make_safe(level text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    current text := current_setting('synchronous_commit');
BEGIN
    IF current = 'off' OR level <> 'local' AND current IN ('local', 'remote_write') THEN
        PERFORM set_config('synchronous_commit', CASE level WHEN 'local' THEN 'local' ELSE 'on' END, true);
    END IF;
    RETURN level <> 'strict' OR current_setting('synchronous_standby_names') <> '';
END $$;

-- Records tasks in a transaction of somebody else's, through any driver, with any search_path, and for any role that may use
-- the schema: all in one text. `call` is JSON: now, map_version, home, level, and the tasks with base64 for their payloads.
-- Answers as enqueue does, or:
--   elsewhere    this store is not the one that is meant, nothing was done
--   no_standbys  the commit cannot be as durable as the level says, nothing was done
-- Without jit, which sessions of ours do not have: the plans that we insist on look so dear that they would be compiled each time.
CREATE OR REPLACE FUNCTION enqueue_within(call text)
RETURNS TABLE (outcome text, place integer, number bigint, known_id text, known_type text)
LANGUAGE plpgsql SECURITY DEFINER {path} SET jit = off AS $$
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
