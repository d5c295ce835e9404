-- Duties and the list of workers.

-- Takes or keeps a duty that nobody else holds; a time of 0 lets it go.
CREATE OR REPLACE FUNCTION hold_duty(given_now bigint, duty text, asker text, ttl_ms bigint)
RETURNS TABLE (holder text, epoch bigint, held boolean, expires_in_ms bigint) LANGUAGE plpgsql {path} AS $$
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

-- Keeps a worker on the list for a while, or takes it off; the orders left for it.
CREATE OR REPLACE FUNCTION put_worker(given_now bigint, id text, words bytea, ttl_ms bigint) RETURNS TABLE (orders bytea)
LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    IF ttl_ms <= 0 THEN
        DELETE FROM workers WHERE worker_id = id;
    ELSE
        RETURN QUERY
        INSERT INTO workers AS w (worker_id, record, started_at, seen_at, expires_at)
        VALUES (id, words, now_ms, now_ms, now_ms + ttl_ms)
        ON CONFLICT (worker_id) DO UPDATE
        SET record = excluded.record, seen_at = excluded.seen_at, expires_at = excluded.expires_at
        RETURNING w.orders;
    END IF;
END $$;

-- Leaves orders for a worker; false if there is no such worker.
CREATE OR REPLACE FUNCTION order_worker(id text, words bytea) RETURNS boolean LANGUAGE plpgsql {path} AS $$
BEGIN
    UPDATE workers SET orders = words WHERE worker_id = id;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION all_workers(given_now bigint)
RETURNS TABLE (record bytea, started_at bigint, seen_at bigint, alive boolean) LANGUAGE plpgsql {look} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    RETURN QUERY SELECT record, started_at, seen_at, expires_at > now_ms FROM workers ORDER BY worker_id COLLATE "C";
END $$;
