-- What code of the schema versions 3 and 4 calls, where ours calls something else.

CREATE OR REPLACE FUNCTION exchange(
    given_now bigint, map_version bigint, ids uuid[], tokens text[], results bytea[], others json, other_results bytea[],
    claim text, worker text, call text, queues text[], limits integer[], max_tasks integer, lease_ms bigint, known_types text[],
    floor_lanes integer[], floor_turns integer[], floor_ranks bigint[], floor_ids uuid[]
) RETURNS TABLE (kind text, lane integer, task_id text, attempt integer, deliveries integer, number bigint, created_at bigint,
                 claimed_at bigint, payload bytea, headers text, policy text) LANGUAGE plpgsql {path} AS $$
BEGIN
    RETURN QUERY
    SELECT h.kind, h.lane, h.task_id, h.attempt, h.deliveries, h.number, h.created_at, h.claimed_at, h.payload, h.headers, h.policy
    FROM hand_over(given_now, map_version, ids, tokens, results, others, other_results, claim, worker, call, queues, limits,
                   max_tasks, lease_ms, known_types, floor_lanes, floor_turns, floor_ranks, floor_ids) h;
END $$;
