-- Wake-ups: `waiting` and `unheard` say which process waits for which queue, and which queues were notified while none waited.

CREATE OR REPLACE FUNCTION wakeup_ms() RETURNS bigint LANGUAGE sql AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;

-- Wakes one waiter for each of these. A wake-up that is marked as unheard has no waiters: the next waiter takes the mark.
CREATE OR REPLACE FUNCTION notify(names text[]) RETURNS void LANGUAGE plpgsql {path} AS $$
DECLARE
    name text;
    waiter record;
    now_ms bigint := wakeup_ms();
BEGIN
    FOR name IN SELECT DISTINCT each FROM unnest(names) AS each ORDER BY each
    LOOP
        CONTINUE WHEN EXISTS (SELECT FROM unheard WHERE wakeup = name AND since > now_ms - {wakeup_ms});
        -- With the same lock in attend: either this call sees the waiter, or the waiter sees the mark.
        PERFORM pg_advisory_xact_lock('waiting'::regclass::integer, hashtext(name));
        LOOP
            DELETE FROM waiting WHERE ctid = (
                SELECT w.ctid FROM waiting w WHERE w.wakeup = name AND w.since > now_ms - {wakeup_ms} ORDER BY w.since DESC LIMIT 1
            ) RETURNING channel, backend INTO waiter;
            IF NOT FOUND THEN
                INSERT INTO unheard VALUES (name, now_ms);
                EXIT;
            END IF;
            -- A process that was killed could not sign off.
            IF EXISTS (SELECT FROM pg_stat_get_activity(waiter.backend)) THEN
                PERFORM pg_notify(waiter.channel, name);
                EXIT;
            END IF;
        END LOOP;
    END LOOP;
END
$$;

-- The session that calls this listens on the channel, for these wake-ups; returns those that were sent already.
CREATE OR REPLACE FUNCTION attend(names text[], on_channel text) RETURNS SETOF text LANGUAGE plpgsql {path} AS $$
DECLARE
    name text;
    now_ms bigint := wakeup_ms();
BEGIN
    FOR name IN SELECT DISTINCT each FROM unnest(names) AS each ORDER BY each
    LOOP
        PERFORM pg_advisory_xact_lock('waiting'::regclass::integer, hashtext(name));
        DELETE FROM unheard WHERE wakeup = name AND since > now_ms - {wakeup_ms};
        IF FOUND THEN
            RETURN NEXT name;
        ELSE
            DELETE FROM waiting WHERE wakeup = name AND since > now_ms - {wakeup_ms} AND channel = on_channel;
            INSERT INTO waiting VALUES (name, now_ms, on_channel, pg_backend_pid());
        END IF;
    END LOOP;
END
$$;

-- Before the first attend of a session: clears away what does not count any more, and processes that were killed.
CREATE OR REPLACE FUNCTION sign_on() RETURNS void LANGUAGE sql SET search_path FROM CURRENT AS $$
    DELETE FROM unheard WHERE since <= wakeup_ms() - {wakeup_ms};
    DELETE FROM waiting WHERE ctid IN (
        SELECT ctid FROM waiting
        WHERE since <= wakeup_ms() - {wakeup_ms}
           OR NOT EXISTS (SELECT FROM pg_stat_get_activity(NULL) AS living WHERE living.pid = backend)
        FOR UPDATE SKIP LOCKED
    )
$$;

-- The same, of what has become too old just now: for the leader, now and then.
CREATE OR REPLACE FUNCTION forget_wakeups() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now_ms bigint := wakeup_ms();
BEGIN
    DELETE FROM waiting w USING (SELECT DISTINCT queue FROM lanes UNION ALL SELECT {maintenance_wakeup}) q
    WHERE w.wakeup = ANY (ARRAY[q.queue]) AND w.since BETWEEN now_ms - 3 * {wakeup_ms} AND now_ms - {wakeup_ms};
    DELETE FROM unheard w USING (SELECT DISTINCT queue FROM lanes UNION ALL SELECT {maintenance_wakeup}) q
    WHERE w.wakeup = ANY (ARRAY[q.queue]) AND w.since BETWEEN now_ms - 3 * {wakeup_ms} AND now_ms - {wakeup_ms};
END $$;

-- The process on this channel waits no more.
CREATE OR REPLACE FUNCTION sign_off(on_channel text) RETURNS void LANGUAGE sql SET search_path FROM CURRENT AS $$
    DELETE FROM waiting WHERE channel = on_channel
$$;
