-- Documents: all that is not a task.

-- Locks a claim until the transaction ends, so that it stays current; why it is not, '' if it is. A heartbeat need not wait.
CREATE OR REPLACE FUNCTION claim_objection(id uuid, given_token text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM claims c WHERE c.task_id = id AND {token} = given_token FOR KEY SHARE;
    RETURN CASE WHEN FOUND THEN ''
                WHEN EXISTS (SELECT FROM tasks t WHERE t.task_id = id) THEN 'stale_claim' ELSE 'unknown' END;
END $$;

-- What a document of kind `queue` says takes effect where claims read it.
CREATE OR REPLACE FUNCTION set_queue(queue_name text, settings json) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    stops boolean := coalesce((settings ->> 'paused')::boolean, false);
    new_step_ms bigint := nullif((settings ->> 'step_ms')::bigint, {step_ms});
BEGIN
    IF stops OR new_step_ms IS NOT NULL THEN
        INSERT INTO queue_settings (queue, paused, step_ms) VALUES (queue_name, stops, new_step_ms)
        ON CONFLICT (queue) DO UPDATE SET paused = excluded.paused, step_ms = excluded.step_ms;
    ELSE
        DELETE FROM queue_settings WHERE queue = queue_name;
    END IF;
END $$;

-- Writes or removes a document, which the caller has locked; with what follows from it. `wakes` is true if it is due earlier
-- than any other of its kind.
CREATE OR REPLACE FUNCTION write_document(w document_write, new_version bigint, now_ms bigint, OUT d documents, OUT wakes boolean)
LANGUAGE plpgsql AS $$
DECLARE
    first_due bigint;
BEGIN
    wakes := false;
    IF w.value IS NULL THEN
        DELETE FROM documents o WHERE o.kind = w.kind AND o.name = w.name;
    ELSE
        IF w.due_at IS NOT NULL THEN
            SELECT min(o.due_at) INTO first_due FROM documents o WHERE o.kind = w.kind AND o.due_at IS NOT NULL;
            wakes := first_due IS NULL OR w.due_at < first_due;
        END IF;
        INSERT INTO documents (kind, name, version, due_at, expires_at, value)
        VALUES (w.kind, w.name, new_version, w.due_at, now_ms + w.ttl_ms, w.value)
        ON CONFLICT (kind, name) DO UPDATE
        SET version = excluded.version, due_at = excluded.due_at, expires_at = excluded.expires_at, value = excluded.value
        RETURNING * INTO d;
    END IF;
    IF w.kind = {queue_kind} THEN
        PERFORM set_queue(w.name, coalesce(convert_from(w.value, 'UTF8'), '{}')::json);
    END IF;
END $$;

-- Replaces, creates or removes a document and records tasks (`sent.ids` is NULL for none), if its version is the expected one
-- and the guards hold. One row: what there is now, its value only if the write was not applied; `wakes` is true if something
-- is due earlier than anything before. The outcome is 'applied', by this call or an earlier one, or, and nothing was done:
--   stale_epoch, stale_map   the epoch is another one, the map is newer (number)
--   unknown, stale_claim     the claim is not current
--   version                  the document was changed by another write
CREATE OR REPLACE FUNCTION put(given_now bigint, w document_write, sent batch)
RETURNS TABLE (outcome text, number bigint, version bigint, due_at bigint, expires_at bigint, value bytea, wakes boolean)
LANGUAGE plpgsql {path} AS $$
#variable_conflict use_variable
DECLARE
    now_ms bigint;
    found documents;
    new_version bigint;
    one record;
BEGIN
    wakes := false;
    IF w.epoch IS NOT NULL THEN
        number := held_epoch();
        IF number <> w.epoch THEN
            outcome := 'stale_epoch';
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    outcome := CASE WHEN w.task_id IS NULL THEN '' ELSE claim_objection(w.task_id, w.token) END;
    -- There may be no row yet that a second writer could wait for.
    PERFORM pg_advisory_xact_lock('documents'::regclass::integer, hashtext(w.kind || '/' || w.name));
    now_ms := time_ms(given_now);
    SELECT * INTO found FROM documents d
    WHERE d.kind = w.kind AND d.name = w.name AND (d.expires_at IS NULL OR d.expires_at > now_ms);
    new_version := CASE WHEN w.version > 0 THEN w.version ELSE coalesce(w.expected, found.version, 0) + 1 END;
    IF outcome = '' THEN
        outcome := CASE WHEN is_written(w, found, new_version) THEN 'applied'
                        WHEN w.expected <> coalesce(found.version, 0) THEN 'version' ELSE '' END;
    END IF;
    IF outcome = '' THEN
        IF sent.ids IS NOT NULL THEN
            -- The leader of the partition knows where it is, whatever the map says.
            FOR one IN SELECT e.* FROM enqueue(given_now, CASE WHEN w.epoch IS NULL THEN w.map_version END, sent) e LOOP
                IF one.outcome = 'stale_map' THEN
                    outcome := one.outcome;
                    number := one.number;
                    RETURN NEXT;
                    RETURN;
                END IF;
                wakes := wakes OR one.outcome = 'maintenance';
            END LOOP;
        END IF;
        one := write_document(w, new_version, now_ms);
        found := one.d;
        wakes := wakes OR one.wakes;
        outcome := 'applied';
    END IF;
    version := found.version;
    due_at := found.due_at;
    expires_at := found.expires_at;
    value := CASE WHEN outcome <> 'applied' THEN found.value END;
    RETURN NEXT;
END $$;

-- Whether the document stands as this write would leave it: the same write was made before.
CREATE OR REPLACE FUNCTION is_written(w document_write, found documents, new_version bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF w.value IS NULL OR found.value IS NULL THEN
        RETURN w.value IS NULL AND found.value IS NULL;
    END IF;
    RETURN found.value = w.value AND CASE WHEN w.expected IS NULL AND w.version = 0
                                          THEN found.due_at IS NOT DISTINCT FROM w.due_at ELSE found.version = new_version END;
END $$;

-- Up to `most` documents of a kind: those with these names, or due until then, the soonest first, or all; by name, after `after`.
CREATE OR REPLACE FUNCTION documents_of(given_kind text, names text[], due_until bigint, after text, now_ms bigint, most integer)
RETURNS SETOF documents LANGUAGE plpgsql AS $$
BEGIN
    IF due_until IS NOT NULL THEN
        RETURN QUERY SELECT d.* FROM documents d
        WHERE d.kind = given_kind AND d.due_at <= due_until AND (d.expires_at IS NULL OR d.expires_at > now_ms)
        ORDER BY d.due_at, d.name LIMIT most;
    ELSIF names IS NOT NULL THEN
        RETURN QUERY SELECT d.* FROM (SELECT DISTINCT u.name FROM unnest(names) u (name)) u
        CROSS JOIN LATERAL (SELECT k.* FROM documents k WHERE k.kind = given_kind AND k.name = u.name LIMIT 1) d
        WHERE (after IS NULL OR d.name > after) AND (d.expires_at IS NULL OR d.expires_at > now_ms)
        ORDER BY d.name COLLATE "C" LIMIT most;
    ELSE
        RETURN QUERY SELECT d.* FROM documents d
        WHERE d.kind = given_kind AND d.name >= coalesce(after, '') AND (after IS NULL OR d.name > after)
          AND (d.expires_at IS NULL OR d.expires_at > now_ms)
        ORDER BY d.name LIMIT most;
    END IF;
END $$;

-- A page of documents, of at most `most_bytes` unless it is one only; with the time, in a row without a name if need be. A last
-- row without a value says that there are more.
CREATE OR REPLACE FUNCTION get_documents(
    given_now bigint, given_kind text, names text[], within_ms bigint, after text, most integer, most_bytes bigint
) RETURNS TABLE (now_ms bigint, name text, value bytea, version bigint, due_at bigint, expires_at bigint)
LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
DECLARE
    at_ms bigint := time_ms(given_now);
    d documents;
    number integer := 0;
    bytes bigint := 0;
BEGIN
    FOR d IN SELECT * FROM documents_of(given_kind, names, at_ms + within_ms, after, at_ms, most + 1) LOOP
        number := number + 1;
        bytes := bytes + octet_length(d.value);
        IF number > most OR (number > 1 AND bytes > most_bytes) THEN
            RETURN QUERY SELECT at_ms, d.name, NULL::bytea, NULL::bigint, NULL::bigint, NULL::bigint;
            RETURN;
        END IF;
        RETURN QUERY SELECT at_ms, d.name, d.value, d.version, d.due_at, d.expires_at;
    END LOOP;
    IF number = 0 THEN
        RETURN QUERY SELECT at_ms, NULL::text, NULL::bytea, NULL::bigint, NULL::bigint, NULL::bigint;
    END IF;
END $$;

-- A page of records of discarded tasks, those of these ids or all, the newest first, from before `before` on; as get_documents.
CREATE OR REPLACE FUNCTION get_discards(given_now bigint, ids uuid[], before bigint, most integer, most_bytes bigint)
RETURNS TABLE (now_ms bigint, number bigint, task_id text, type text, queue text, payload bytea, reason text, discarded_at bigint,
               error text) LANGUAGE plpgsql {look} AS $$
#variable_conflict use_column
DECLARE
    at_ms bigint := time_ms(given_now);
    d discards;
    counted integer := 0;
    bytes bigint := 0;
    ends boolean;
BEGIN
    FOR d IN
        SELECT k.* FROM discards k
        WHERE (before IS NULL OR k.number < before) AND (ids IS NULL OR k.task_id = ANY (ids))
        ORDER BY k.number DESC LIMIT most + 1
    LOOP
        counted := counted + 1;
        bytes := bytes + octet_length(d.payload) + octet_length(d.reason) + octet_length(d.error);
        ends := counted > most OR (counted > 1 AND bytes > most_bytes);
        RETURN QUERY SELECT at_ms, d.number, encode(uuid_send(d.task_id), 'hex'), d.type, d.queue,
                            CASE WHEN NOT ends THEN d.payload END, d.reason, d.discarded_at, d.error;
        EXIT WHEN ends;
    END LOOP;
    IF counted = 0 THEN
        RETURN QUERY SELECT at_ms, NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::bytea, NULL::text, NULL::bigint, NULL::text;
    END IF;
END $$;
