-- Leadership and the list of workers.

-- Who leads, which changes nothing.
CREATE OR REPLACE FUNCTION leader(given_now bigint, given_name text)
RETURNS TABLE (holder text, epoch bigint, held boolean, expires_in_ms bigint) LANGUAGE plpgsql {path} AS $$
DECLARE
    now_ms bigint := time_ms(given_now);
    found leaders;
    left_ms bigint;
BEGIN
    SELECT * INTO found FROM leaders l WHERE l.name = given_name;
    left_ms := least(found.expires_at - now_ms, CASE WHEN found.ttl > 0 THEN found.ttl END);
    RETURN QUERY SELECT CASE WHEN left_ms > 0 THEN found.owner ELSE '' END, coalesce(found.epoch, 0), false,
                        greatest(coalesce(left_ms, 0), 0);
END $$;

-- Takes or renews a leadership that no other owner has; a time of 0 lets it go.
CREATE OR REPLACE FUNCTION lead(given_now bigint, given_name text, asker text, ttl_ms bigint)
RETURNS TABLE (holder text, epoch bigint, held boolean, expires_in_ms bigint) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint;
    found leaders;
    running boolean;
BEGIN
    INSERT INTO leaders (name, owner, epoch, expires_at) VALUES (given_name, '', 0, 0) ON CONFLICT DO NOTHING;
    SELECT * INTO found FROM leaders WHERE name = given_name FOR UPDATE;
    -- Read when no other call can change it any more.
    now_ms := time_ms(given_now);
    IF found.ttl > 0 AND found.expires_at > now_ms + found.ttl THEN
        -- Held before the clock was set back: from now on for no longer than it was asked for.
        found.expires_at := now_ms + found.ttl;
        UPDATE leaders SET expires_at = found.expires_at WHERE name = given_name;
    END IF;
    running := found.expires_at > now_ms;
    IF running AND found.owner <> asker THEN
        RETURN QUERY SELECT found.owner, found.epoch, false, found.expires_at - now_ms;
    ELSIF ttl_ms <= 0 THEN
        IF running THEN
            UPDATE leaders SET expires_at = now_ms WHERE name = given_name;
        END IF;
        RETURN QUERY SELECT '', found.epoch, false, 0::bigint;
    ELSE
        found.epoch := found.epoch + (NOT running)::integer;
        UPDATE leaders SET owner = asker, epoch = found.epoch, expires_at = now_ms + ttl_ms, ttl = ttl_ms
        WHERE name = given_name;
        RETURN QUERY SELECT asker, found.epoch, true, ttl_ms;
    END IF;
END $$;

-- Keeps a worker on the list for a while, or takes it off; the orders left for it.
CREATE OR REPLACE FUNCTION put_worker(given_now bigint, id text, words bytea, ttl_ms bigint) RETURNS TABLE (orders bytea)
LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    IF ttl_ms <= 0 THEN
        DELETE FROM workers WHERE worker_id = id;
        DELETE FROM documents d WHERE d.kind = {orders_kind} AND d.name = id;
    ELSE
        INSERT INTO workers AS w (worker_id, record, started_at, seen_at, expires_at)
        VALUES (id, words, now_ms, now_ms, now_ms + ttl_ms)
        ON CONFLICT (worker_id) DO UPDATE
        SET record = excluded.record, seen_at = excluded.seen_at, expires_at = excluded.expires_at;
        RETURN QUERY SELECT d.value FROM documents d WHERE d.kind = {orders_kind} AND d.name = id;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION all_workers(given_now bigint)
RETURNS TABLE (record bytea, started_at bigint, seen_at bigint, alive boolean) LANGUAGE plpgsql {look} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    -- Seen longer ahead than it may be silent: the clock was set back since.
    RETURN QUERY
    SELECT record, started_at, seen_at, expires_at > now_ms AND 2 * seen_at - expires_at <= now_ms
    FROM workers ORDER BY worker_id COLLATE "C";
END $$;
