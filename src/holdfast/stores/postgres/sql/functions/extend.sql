-- Renews the leases of current claims; a lease is never shortened. One answer each: held, cancel_requested, and why not.
CREATE OR REPLACE FUNCTION extend(given_now bigint, lease_ms bigint, ids uuid[], tokens text[], progresses bytea[])
RETURNS TABLE (held boolean, cancel_requested boolean, reason text) LANGUAGE plpgsql {path} AS $$
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
        FROM merged g WHERE c.task_id = g.id AND {token} = g.token
        RETURNING c.task_id, g.token, c.cancel_requested
    )
    SELECT r.task_id IS NOT NULL, coalesce(r.cancel_requested, false),
           CASE WHEN r.task_id IS NOT NULL THEN '' WHEN t.task_id IS NULL THEN 'unknown' ELSE 'stale_claim' END
    FROM given g
    LEFT JOIN renewed r ON r.task_id = g.id AND r.token = g.token
    LEFT JOIN tasks t ON t.task_id = g.id
    ORDER BY g.place;
END $$;
