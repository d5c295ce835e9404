-- What code of schema version 2 calls, where ours calls something else: workers of that version go on beside ours.

CREATE OR REPLACE FUNCTION reserve(
    given_now bigint, map_version bigint, ids uuid[], tokens text[], results bytea[], others json, other_results bytea[],
    claim text, worker text, call text, queues text[], limits integer[], max_tasks integer, lease_ms bigint, known_types text[],
    floor_lanes integer[], floor_turns integer[], floor_ranks bigint[], floor_ids uuid[]
) RETURNS TABLE (kind text, lane integer, task_id text, attempt integer, deliveries integer, number bigint, created_at bigint,
                 payload bytea, headers text, policy text) LANGUAGE plpgsql {path} AS $$
BEGIN
    RETURN QUERY
    SELECT e.kind, e.lane, e.task_id, e.attempt, e.deliveries, e.number, e.created_at, e.payload, e.headers, e.policy
    FROM hand_over(given_now, map_version, ids, tokens, results, others, other_results, claim, worker, call, queues, limits,
                   max_tasks, lease_ms, known_types, floor_lanes, floor_turns, floor_ranks, floor_ids) e;
END $$;

CREATE OR REPLACE FUNCTION counts(given_now bigint)
RETURNS TABLE (queue text, state text, number bigint, oldest_ms bigint) LANGUAGE plpgsql {look} AS $$
BEGIN
    RETURN QUERY SELECT d.queue, d.state, d.number, d.oldest_ms FROM depths(given_now) d WHERE d.step_ms IS NULL;
END $$;

CREATE OR REPLACE FUNCTION announce(given_now bigint, id text, words bytea, ttl_ms bigint) RETURNS void LANGUAGE plpgsql {path} AS $$
BEGIN
    PERFORM put_worker(given_now, id, words, ttl_ms);
END $$;
