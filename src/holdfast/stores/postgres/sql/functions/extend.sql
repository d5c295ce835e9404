-- Renews the leases of current claims; a lease is never shortened. One answer each: held, cancel_requested, and why not.
CREATE OR REPLACE FUNCTION extend(given_now bigint, lease_ms bigint, ids uuid[], tokens text[], progresses bytea[])
RETURNS TABLE (held boolean, cancel_requested boolean, reason text) LANGUAGE plpgsql {path} SET enable_hashjoin = on AS $$
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
        FROM merged g WHERE c.task_id = ANY (ARRAY[g.id]) AND {token} = g.token
        RETURNING c.task_id, g.token, c.cancel_requested
    )
    SELECT r.task_id IS NOT NULL, coalesce(r.cancel_requested, false),
           CASE WHEN r.task_id IS NOT NULL THEN '' WHEN t.known THEN 'stale_claim' ELSE 'unknown' END
    FROM given g
    LEFT JOIN renewed r ON r.task_id = g.id AND r.token = g.token
    LEFT JOIN LATERAL (SELECT true AS known FROM tasks k WHERE r.task_id IS NULL AND k.task_id = g.id LIMIT 1) t ON true
    ORDER BY g.place;
END $$;

-- The same answers, and nothing is written.
CREATE OR REPLACE FUNCTION check_claims(ids uuid[], tokens text[])
RETURNS TABLE (held boolean, cancel_requested boolean, reason text) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT h.held IS NOT NULL, coalesce(h.cancel_requested, false),
           CASE WHEN h.held THEN '' WHEN t.known THEN 'stale_claim' ELSE 'unknown' END
    FROM unnest(ids, tokens) WITH ORDINALITY g (id, token, place)
    LEFT JOIN LATERAL (
        SELECT true AS held, c.cancel_requested FROM claims c WHERE c.task_id = g.id AND {token} = g.token LIMIT 1
    ) h ON true
    LEFT JOIN LATERAL (SELECT true AS known FROM tasks k WHERE h.held IS NULL AND k.task_id = g.id LIMIT 1) t ON true
    ORDER BY g.place;
END $$;
