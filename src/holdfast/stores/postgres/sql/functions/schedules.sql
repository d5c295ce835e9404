-- Schedules: one JSON document each, replaced by whoever has read the last version.

-- Those whose next tick comes within that time, or all, the soonest first; with the time, in a row without one if need be.
CREATE OR REPLACE FUNCTION all_schedules(given_now bigint, within_ms bigint, most integer)
RETURNS TABLE (now_ms bigint, schedule bytea) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
DECLARE
    at_ms bigint := time_ms(given_now);
BEGIN
    IF within_ms IS NULL THEN
        RETURN QUERY SELECT at_ms, s.schedule FROM schedules s ORDER BY s.next_at, s.name LIMIT most;
    ELSE
        RETURN QUERY
        SELECT at_ms, s.schedule FROM schedules s WHERE s.next_at <= at_ms + within_ms ORDER BY s.next_at, s.name LIMIT most;
    END IF;
    IF NOT FOUND THEN
        RETURN QUERY SELECT at_ms, NULL::bytea;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION get_schedule(given_name text) RETURNS TABLE (schedule bytea) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT s.schedule FROM schedules s WHERE s.name = given_name;
END $$;

-- Replaces a schedule, or removes it if there is no new one, and records tasks (`ids` is NULL for none; see enqueue.sql), if
-- its version is the expected one. Answers as enqueue does for the tasks, or, and nothing was done:
--   stale_epoch    the epoch is another one (number)
--   stale_version  it was changed by somebody else
-- The same call again changes nothing, and answers nothing.
CREATE OR REPLACE FUNCTION put_schedule(
    given_now bigint, map_version bigint, given_epoch bigint, given_name text, expected bigint, new_version bigint,
    new_next_at bigint, new_schedule bytea, ids uuid[], payloads bytea[], all_headers text[], policies text[], shape_of integer[],
    queues text[], types text[], priorities integer[], waits bigint[], run_ats bigint[], request_ids text[]
) RETURNS TABLE (outcome text, place integer, number bigint, known_id text, known_type text) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
DECLARE
    current_epoch bigint;
    found_version bigint;
    found_schedule bytea;
    first_tick bigint;
BEGIN
    IF given_epoch IS NOT NULL THEN
        current_epoch := held_epoch();
        IF current_epoch <> given_epoch THEN
            RETURN QUERY SELECT 'stale_epoch', 0, current_epoch, NULL::text, NULL::text;
            RETURN;
        END IF;
    END IF;
    -- There may be no row yet that a second writer could wait for.
    PERFORM pg_advisory_xact_lock('schedules'::regclass::integer, hashtext(given_name));
    SELECT s.version, s.schedule INTO found_version, found_schedule FROM schedules s WHERE s.name = given_name;
    IF coalesce(found_version, 0) <> expected THEN
        IF found_schedule IS DISTINCT FROM new_schedule THEN
            RETURN QUERY SELECT 'stale_version', 0, found_version, NULL::text, NULL::text;
        END IF;
        RETURN;
    END IF;
    IF ids IS NOT NULL THEN
        FOR outcome, place, number, known_id, known_type IN
            -- The owner of the partition knows where it is, whatever the map says.
            SELECT * FROM enqueue(given_now, CASE WHEN given_epoch IS NULL THEN map_version END, ids, payloads, all_headers, policies,
                                  shape_of, queues, types, priorities, waits, run_ats, request_ids)
        LOOP
            RETURN NEXT;
            IF outcome = 'stale_map' THEN
                RETURN;
            END IF;
        END LOOP;
    END IF;
    IF new_schedule IS NULL THEN
        DELETE FROM schedules s WHERE s.name = given_name;
        RETURN;
    END IF;
    SELECT min(s.next_at) INTO first_tick FROM schedules s;
    IF new_next_at < first_tick OR first_tick IS NULL AND new_next_at IS NOT NULL THEN
        RETURN QUERY SELECT 'upkeep', 0, new_next_at, NULL::text, NULL::text;
    END IF;
    INSERT INTO schedules (name, version, next_at, schedule) VALUES (given_name, new_version, new_next_at, new_schedule)
    ON CONFLICT (name) DO UPDATE SET version = excluded.version, next_at = excluded.next_at, schedule = excluded.schedule;
END $$;
