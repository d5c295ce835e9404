-- Records tasks, each at most once. Answers only for what is worth telling, `place` counts from 1:
--   stale_map    the map is newer (number is its version), nothing was done
--   maintenance  something is due earlier than anything before
--   known        the task at `place` is known as task_id
--   task_id, request_id    it is known as something else, of this type (NULL: in another queue, of which nothing is told)

-- The lanes of these shapes, which are there until the end of the transaction: prune deletes those that are empty.
CREATE OR REPLACE FUNCTION lanes_of(queues text[], types text[], priorities integer[]) RETURNS integer[]
LANGUAGE plpgsql AS $$
DECLARE
    numbers integer[];
    full_queue text;
BEGIN
    PERFORM pg_advisory_xact_lock_shared('lanes'::regclass::integer, 0);
    FOR tries IN 1..2 LOOP
        SELECT array_agg(l.lane ORDER BY s.place) INTO numbers
        FROM unnest(queues, types, priorities) WITH ORDINALITY s (queue, type, priority, place)
        LEFT JOIN LATERAL (
            SELECT min(k.lane) AS lane FROM lanes k
            WHERE k.queue = s.queue AND k.type = s.type AND k.priority = s.priority
        ) l ON true;
        EXIT WHEN array_position(numbers, NULL) IS NULL;
        SELECT s.queue INTO full_queue FROM unnest(queues, numbers) s (queue, lane) WHERE s.lane IS NULL
        GROUP BY s.queue HAVING count(*) + (SELECT count(*) FROM lanes k WHERE k.queue = s.queue) > {most_lanes} LIMIT 1;
        IF full_queue IS NOT NULL THEN
            RAISE EXCEPTION 'queue % has % combinations of task type and priority, the most that it may have', full_queue, to_char({most_lanes}, 'FM999,999')
            USING ERRCODE = 'HF004';
        END IF;
        INSERT INTO lanes (queue, type, priority)
        SELECT DISTINCT queue, type, priority FROM unnest(queues, types, priorities, numbers) s (queue, type, priority, lane)
        WHERE lane IS NULL;
    END LOOP;
    RETURN numbers;
END $$;

CREATE OR REPLACE FUNCTION enqueue(given_now bigint, map_version bigint, sent batch)
RETURNS TABLE (outcome text, place integer, number bigint, known_id text, known_type text) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
DECLARE
    newer bigint := newer_map(map_version);
    now_ms bigint;
    priority_of integer[] := sent.priorities;    -- as a variable: a field would be unpacked again for each task
    lane_of integer[];
    due_of bigint[];
    recorded uuid[];
    first_due bigint;
BEGIN
    IF newer IS NOT NULL THEN
        RETURN QUERY SELECT 'stale_map', 0, newer, NULL::text, NULL::text;
        RETURN;
    END IF;
    -- The transaction gets its number before it reads the time: see look_back().
    PERFORM pg_current_xact_id();
    now_ms := time_ms(given_now);
    lane_of := lanes_of(sent.queues, sent.types, sent.priorities);
    SELECT array_agg(greatest(coalesce(run_at, now_ms + wait), now_ms) ORDER BY n), min(coalesce(run_at, now_ms + wait))
        FILTER (WHERE coalesce(run_at, now_ms + wait) > now_ms)
    INTO due_of, first_due
    FROM unnest(sent.waits, sent.run_ats) WITH ORDINALITY s (wait, run_at, n);
    IF first_due IS NOT NULL AND NOT EXISTS (
        SELECT FROM scheduled WHERE due >= (SELECT due_from FROM horizon) AND due <= first_due
    ) THEN
        RETURN QUERY SELECT 'maintenance', 0, first_due, NULL::text, NULL::text;
    END IF;
    IF sent.request_ids IS NOT NULL THEN
        RETURN QUERY SELECT * FROM enqueue_each(now_ms, sent, lane_of, due_of);
        PERFORM note_deadlines(sent.ids, sent.policies);
        RETURN;
    END IF;
    IF first_due IS NULL THEN
        WITH new AS (
            INSERT INTO tasks (task_id, lane, rank, created_at, headers, policy, payload)
            SELECT id, lane_of[coalesce(shape, 1)], now_ms - priority_of[coalesce(shape, 1)] * {step_ms}::bigint, now_ms,
                   headers, policy, payload
            FROM unnest(sent.ids, sent.payloads, sent.headers, sent.policies, sent.shape_of) u (id, payload, headers, policy, shape)
            ON CONFLICT DO NOTHING
            RETURNING task_id, lane, rank, octet_length(payload) AS bytes, policy
        ), waiting AS (
            INSERT INTO ready (lane, bytes, rank, task_id, result_ttl_ms)
            SELECT lane, bytes, rank, task_id, result_ttl(policy) FROM new
        )
        SELECT array_agg(task_id) INTO recorded FROM new;
    ELSE
        recorded := enqueue_later(now_ms, sent, lane_of, due_of);
    END IF;
    IF coalesce(cardinality(recorded), 0) < cardinality(sent.ids) THEN
        RETURN QUERY SELECT * FROM known_tasks(sent, coalesce(recorded, '{}'));
    END IF;
    IF sent.policies IS NOT NULL THEN
        PERFORM note_deadlines(sent.ids, sent.policies);
    END IF;
END $$;

-- Records tasks of which some are due later.
CREATE OR REPLACE FUNCTION enqueue_later(now_ms bigint, sent batch, lane_of integer[], due_of bigint[]) RETURNS uuid[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    priority_of integer[] := sent.priorities;
    recorded uuid[];
BEGIN
    WITH new AS (
        INSERT INTO tasks (task_id, lane, rank, created_at, headers, policy, payload)
        SELECT id, lane_of[coalesce(shape, 1)],
               due_of[coalesce(shape, 1)] - priority_of[coalesce(shape, 1)] * {step_ms}::bigint, now_ms, headers, policy, payload
        FROM unnest(sent.ids, sent.payloads, sent.headers, sent.policies, sent.shape_of) u (id, payload, headers, policy, shape)
        ON CONFLICT DO NOTHING
        RETURNING task_id, lane, rank, octet_length(payload) AS bytes, result_ttl(policy) AS ttl_ms
    ), placed AS MATERIALIZED (
        SELECT n.*, n.rank + l.priority * {step_ms}::bigint AS due
        FROM new n CROSS JOIN LATERAL (SELECT k.priority FROM lanes k WHERE k.lane = n.lane LIMIT 1) l
    ), waiting AS (
        INSERT INTO ready (lane, bytes, rank, task_id, result_ttl_ms)
        SELECT lane, bytes, rank, task_id, ttl_ms FROM placed WHERE due <= now_ms
    ), delayed AS (
        INSERT INTO scheduled (task_id, due, lane, bytes, result_ttl_ms)
        SELECT task_id, due, lane, bytes, ttl_ms FROM placed WHERE due > now_ms
    )
    SELECT array_agg(task_id) INTO recorded FROM new;
    RETURN recorded;
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

-- What is there already, for each task that was not recorded just now. Of a task in another queue nothing is told.
CREATE OR REPLACE FUNCTION known_tasks(sent batch, recorded uuid[])
RETURNS TABLE (outcome text, place integer, number bigint, known_id text, known_type text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT CASE WHEN l.queue = sent.queues[coalesce(u.shape, 1)] AND l.type = sent.types[coalesce(u.shape, 1)] AND t.payload = u.payload
                THEN 'known' ELSE 'task_id' END,
           u.place::integer, NULL::bigint, encode(uuid_send(u.id), 'hex'),
           CASE WHEN l.queue = sent.queues[coalesce(u.shape, 1)] THEN l.type END
    FROM unnest(sent.ids, sent.payloads, sent.shape_of) WITH ORDINALITY u (id, payload, shape, place)
    CROSS JOIN LATERAL (SELECT k.lane, k.payload FROM tasks k WHERE k.task_id = u.id LIMIT 1) t
    CROSS JOIN LATERAL (SELECT k.queue, k.type FROM lanes k WHERE k.lane = t.lane LIMIT 1) l
    WHERE NOT (u.id = ANY (recorded) AND array_position(sent.ids, u.id) = u.place);
END $$;

-- One after the other: a task with a request_id may meet another one of the same batch.
CREATE OR REPLACE FUNCTION enqueue_each(now_ms bigint, sent batch, lane_of integer[], due_of bigint[])
RETURNS TABLE (outcome text, place integer, number bigint, known_id text, known_type text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    one record;
    known record;
    shape integer;
    done boolean;
BEGIN
    FOR one IN
        SELECT u.*, coalesce(sent.shape_of[u.n], 1) AS shape
        FROM unnest(sent.ids, sent.payloads, sent.headers, sent.policies, sent.request_ids) WITH ORDINALITY u (id, payload, headers, policy, request_id, n)
        ORDER BY n
    LOOP
        shape := one.shape;
        done := false;
        FOR round IN 1..{most_rounds} LOOP
            SELECT t.task_id, 'task_id' AS kind INTO known FROM tasks t WHERE t.task_id = one.id;
            IF NOT FOUND AND one.request_id IS NOT NULL THEN
                SELECT q.task_id, 'request_id' AS kind INTO known
                FROM requests q WHERE q.queue = sent.queues[shape] AND q.request_id = one.request_id;
            END IF;
            IF FOUND THEN
                RETURN QUERY
                SELECT CASE WHEN l.queue = sent.queues[shape] AND l.type = sent.types[shape] AND t.payload = one.payload
                            THEN 'known' ELSE known.kind END,
                       one.n::integer, NULL::bigint, encode(uuid_send(t.task_id), 'hex'),
                       CASE WHEN l.queue = sent.queues[shape] THEN l.type END
                FROM tasks t CROSS JOIN LATERAL (SELECT k.queue, k.type FROM lanes k WHERE k.lane = t.lane LIMIT 1) l
                WHERE t.task_id = known.task_id;
                done := FOUND;
                IF NOT done THEN
                    -- The task was deleted just now, and its request_id with it; one that was left over stands for nothing.
                    DELETE FROM requests q WHERE q.queue = sent.queues[shape] AND q.request_id = one.request_id
                      AND q.task_id = known.task_id AND NOT EXISTS (SELECT FROM tasks t WHERE t.task_id = known.task_id);
                END IF;
            ELSE
                done := record_one(
                    now_ms, (one.id, lane_of[shape], due_of[shape] - sent.priorities[shape] * {step_ms}::bigint, now_ms, one.request_id,
                             one.headers, one.policy, one.payload)::tasks, sent.queues[shape], due_of[shape]);
            END IF;
            EXIT WHEN done;
        END LOOP;
        IF NOT done THEN
            RAISE EXCEPTION 'task % and its request_id keep changing', one.id USING ERRCODE = '40001';
        END IF;
    END LOOP;
END $$;

-- Records one task, unless another call was faster.
CREATE OR REPLACE FUNCTION record_one(now_ms bigint, t tasks, queue_name text, due_at bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF t.request_id IS NOT NULL THEN
        INSERT INTO requests (queue, request_id, task_id) VALUES (queue_name, t.request_id, t.task_id) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;
    INSERT INTO tasks VALUES (t.*) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        DELETE FROM requests q WHERE q.queue = queue_name AND q.request_id = t.request_id AND q.task_id = t.task_id;
        RETURN false;
    END IF;
    IF due_at <= now_ms THEN
        INSERT INTO ready (lane, bytes, rank, task_id, result_ttl_ms)
        VALUES (t.lane, octet_length(t.payload), t.rank, t.task_id, result_ttl(t.policy));
    ELSE
        INSERT INTO scheduled (task_id, due, lane, bytes, result_ttl_ms)
        VALUES (t.task_id, due_at, t.lane, octet_length(t.payload), result_ttl(t.policy));
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

-- What is wrong with a policy from such a role: its numbers are calculated with, and no text in it is nested.
CREATE OR REPLACE FUNCTION policy_flaw(policy json) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    entry record;
BEGIN
    IF json_typeof(policy) <> 'object' THEN
        RETURN 'its policy is not a JSON object';
    END IF;
    FOR entry IN SELECT p.key, p.value, json_typeof(p.value) AS kind FROM json_each(policy) p LOOP
        IF entry.kind = 'object' OR entry.kind = 'array' AND EXISTS (
            SELECT FROM json_array_elements(entry.value) e WHERE json_typeof(e.value) <> 'string'
        ) THEN
            RETURN 'its policy is nested';
        ELSIF entry.kind = 'number' AND NOT entry.value::text::numeric BETWEEN 0 AND (
            CASE entry.key WHEN 'jitter' THEN 1 WHEN 'max_attempts' THEN {most_attempts} ELSE {longest_ms} END
        ) THEN
            RETURN 'a number of its policy is out of range';
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- What is wrong with a task from a role that may only use the schema, NULL if nothing: nothing of it is believed.
CREATE OR REPLACE FUNCTION flaw(t sent_task) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF t.task_id IS NULL OR t.type IS NULL OR t.type !~ {name_pattern} OR t.queue IS NULL OR t.queue !~ {name_pattern} THEN
        RETURN 'its task_id, type or queue is not one';
    ELSIF t.request_id !~ {visible_pattern} THEN
        RETURN 'its request_id is not one';
    ELSIF substr(replace(t.task_id::text, '-', ''), 17, 4) = 'ffff' OR starts_with(t.request_id, 'schedule:') THEN
        RETURN 'only a schedule gives such a task_id or request_id';
    ELSIF t.priority IS NULL OR t.priority NOT BETWEEN {lowest_priority} AND {highest_priority} THEN
        RETURN 'its priority is out of range';
    ELSIF t.delay_ms IS NULL OR t.delay_ms NOT BETWEEN 0 AND {latest_ms} OR t.run_at_ms NOT BETWEEN 0 AND {latest_ms} THEN
        RETURN 'its delay_ms or run_at_ms is out of range';
    ELSIF t.payload IS NULL OR octet_length(t.payload) > {most_payload_bytes} * 4 / 3 + 4 THEN
        RETURN 'its payload is missing or too large';
    ELSIF octet_length(t.policy) > {most_text_bytes} OR octet_length(t.headers) > {most_text_bytes} THEN
        RETURN 'its policy or headers are too large';
    ELSIF policy_flaw(t.policy::json) IS NOT NULL THEN
        RETURN policy_flaw(t.policy::json);
    ELSIF t.headers IS NOT NULL AND (
        json_typeof(t.headers::json) <> 'object'
        OR EXISTS (SELECT FROM json_each(t.headers::json) h WHERE json_typeof(h.value) <> 'string')
    ) THEN
        RETURN 'its headers are not a JSON object of strings';
    END IF;
    RETURN NULL;
END $$;

-- Records tasks in a transaction of the caller, through any driver, with any search_path, and for any role that may use
-- the schema: all in one text. `call` is JSON: now, map_version, home, level, and the tasks with base64 for their payloads.
-- The time in it counts only if the caller may act for the owner of the schema: it is for tests.
-- Answers as enqueue does, or:
--   elsewhere    this store is not the one that is meant, nothing was done
--   no_standbys  the commit cannot be as durable as the level says, nothing was done
-- HF003 refuses what no task can have.
-- Without jit, which sessions of ours do not have: the plans that we force look so dear that they would be compiled each time.
CREATE OR REPLACE FUNCTION enqueue_within(call text)
RETURNS TABLE (outcome text, place integer, number bigint, known_id text, known_type text)
LANGUAGE plpgsql SECURITY DEFINER {path} SET jit = off AS $$
DECLARE
    given json := call::json;
    now_ms bigint;
    tasks record;
BEGIN
    IF given ->> 'home' <> home() THEN
        RETURN QUERY SELECT 'elsewhere', 0, NULL::bigint, NULL::text, NULL::text;
        RETURN;
    END IF;
    IF NOT make_safe(given ->> 'level') THEN
        RETURN QUERY SELECT 'no_standbys', 0, NULL::bigint, NULL::text, NULL::text;
        RETURN;
    END IF;
    IF pg_has_role(session_user, current_user, 'USAGE') THEN
        now_ms := (given ->> 'now')::bigint;
    END IF;
    SELECT array_agg(t.task_id ORDER BY u.n) AS ids, array_agg(decode(t.payload, 'base64') ORDER BY u.n) AS payloads,
           array_agg(t.headers ORDER BY u.n) AS headers, array_agg(t.policy ORDER BY u.n) AS policies,
           array_agg(u.n::integer ORDER BY u.n) AS shapes, array_agg(t.queue ORDER BY u.n) AS queues,
           array_agg(t.type ORDER BY u.n) AS types, array_agg(t.priority ORDER BY u.n) AS priorities,
           array_agg(t.delay_ms ORDER BY u.n) AS waits, array_agg(t.run_at_ms ORDER BY u.n) AS run_ats,
           CASE WHEN count(t.request_id) > 0 THEN array_agg(t.request_id ORDER BY u.n) END AS request_ids,
           min('task ' || u.n || ': ' || flaw(t)) AS flaw
    INTO tasks
    FROM json_array_elements(given -> 'tasks') WITH ORDINALITY u (task, n)
    CROSS JOIN LATERAL json_populate_record(NULL::sent_task, u.task) t;
    IF tasks.flaw IS NOT NULL THEN
        RAISE EXCEPTION '%', tasks.flaw USING ERRCODE = 'HF003';
    END IF;
    RETURN QUERY
    SELECT * FROM enqueue(now_ms, (given ->> 'map_version')::bigint,
                          (tasks.ids, tasks.payloads, tasks.headers, tasks.policies, tasks.shapes, tasks.queues, tasks.types,
                           tasks.priorities, tasks.waits, tasks.run_ats, tasks.request_ids)::batch);
END $$;
