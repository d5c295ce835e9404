-- Bells: who waits for which queue, and which queues were rung while nobody waited.
-- Neither table is needed after a crash: a lost ring costs latency, and those who wait say so again.

-- A process waits for this bell, and is told on this channel. Gone as soon as it was told.
CREATE UNLOGGED TABLE waiting (
    bell    text NOT NULL,
    channel text NOT NULL,
    backend integer NOT NULL,
    PRIMARY KEY (bell, channel)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- A bell that was rung and heard by nobody; the next one to wait for it is woken at once.
CREATE UNLOGGED TABLE unheard (
    bell text PRIMARY KEY
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Wakes one waiter for each of these bells. A bell that is marked as unheard has no waiters: who comes takes the mark.
CREATE FUNCTION ring(names text[]) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    name text;
    waiter record;
BEGIN
    FOR name IN SELECT DISTINCT each FROM unnest(names) AS each
                WHERE NOT EXISTS (SELECT FROM unheard WHERE bell = each) ORDER BY each
    LOOP
        -- With the same lock in attend: either this ring sees the waiter, or the waiter sees the mark.
        PERFORM pg_advisory_xact_lock('waiting'::regclass::integer, hashtext(name));
        LOOP
            DELETE FROM waiting WHERE bell = name AND channel = (
                SELECT channel FROM waiting WHERE bell = name LIMIT 1
            ) RETURNING channel, backend INTO waiter;
            IF NOT FOUND THEN
                INSERT INTO unheard VALUES (name) ON CONFLICT DO NOTHING;
                EXIT;
            END IF;
            -- Those who were killed could not sign off.
            IF EXISTS (SELECT FROM pg_stat_get_activity(waiter.backend)) THEN
                PERFORM pg_notify(waiter.channel, name);
                EXIT;
            END IF;
        END LOOP;
    END LOOP;
END
$$;

-- The session that calls this listens on the channel, for these bells; returns those that were rung already.
CREATE FUNCTION attend(names text[], on_channel text) RETURNS SETOF text LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT DISTINCT each FROM unnest(names) AS each ORDER BY each
    LOOP
        PERFORM pg_advisory_xact_lock('waiting'::regclass::integer, hashtext(name));
        DELETE FROM unheard WHERE bell = name;
        IF FOUND THEN
            RETURN NEXT name;
        ELSE
            INSERT INTO waiting VALUES (name, on_channel, pg_backend_pid()) ON CONFLICT DO NOTHING;
        END IF;
    END LOOP;
END
$$;

-- Before the first attend of a session: clears away those who were killed.
CREATE FUNCTION sign_on() RETURNS void LANGUAGE sql SET search_path FROM CURRENT AS $$
    DELETE FROM waiting WHERE (bell, channel) IN (
        SELECT bell, channel FROM waiting
        WHERE NOT EXISTS (SELECT FROM pg_stat_get_activity(NULL) AS living WHERE living.pid = backend)
        FOR UPDATE SKIP LOCKED
    )
$$;

-- The process on this channel waits no more.
CREATE FUNCTION sign_off(on_channel text) RETURNS void LANGUAGE sql SET search_path FROM CURRENT AS $$
    DELETE FROM waiting WHERE channel = on_channel
$$;
