-- Values under keys: the first one stays for its time.

-- Keeps a value, if the claim is current and the key is free; tells what stands there, and why the claim does not count.
CREATE OR REPLACE FUNCTION keep(given_now bigint, given_key text, given_value bytea, ttl_ms bigint, id uuid, given_token text)
RETURNS TABLE (value bytea, reason text) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    reason := '';
    IF id IS NOT NULL THEN
        -- Nobody takes the claim away before this is committed; a heartbeat need not wait for it.
        PERFORM FROM claims c WHERE c.task_id = id AND {token} = given_token FOR KEY SHARE;
        IF NOT FOUND THEN
            reason := CASE WHEN EXISTS (SELECT FROM tasks t WHERE t.task_id = id) THEN 'stale_claim' ELSE 'unknown' END;
        END IF;
    END IF;
    IF reason = '' THEN
        INSERT INTO kept AS k (key, expires_at, value) VALUES (given_key, now_ms + ttl_ms, given_value)
        ON CONFLICT (key) DO UPDATE SET expires_at = excluded.expires_at, value = excluded.value WHERE k.expires_at <= now_ms;
    END IF;
    RETURN QUERY SELECT (SELECT k.value FROM kept k WHERE k.key = given_key AND k.expires_at > now_ms), reason;
END $$;

CREATE OR REPLACE FUNCTION get_kept(given_now bigint, given_key text) RETURNS TABLE (value bytea) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
BEGIN
    RETURN QUERY SELECT k.value FROM kept k WHERE k.key = given_key AND k.expires_at > now_ms;
END $$;

-- Deletes values whose time is over; how many.
CREATE OR REPLACE FUNCTION forget_kept(now_ms bigint, most integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    gone integer;
BEGIN
    DELETE FROM kept WHERE key = ANY (ARRAY(
        SELECT key FROM kept WHERE expires_at <= now_ms ORDER BY expires_at LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;
