-- Deletes finished tasks past their retention, by age first, then by count, and values whose time is over; also old records
-- of discards, silent workers.
-- The epoch is the current one if it is not the caller's, and nothing was done.

CREATE OR REPLACE FUNCTION forget(ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM finished WHERE task_id = ANY (ids) RETURNING lane, state
    )
    INSERT INTO tally (lane, state, number) SELECT lane, state, -count(*) FROM gone GROUP BY lane, state;
    DELETE FROM requests q USING tasks t, lanes l
    WHERE t.task_id = ANY (ids) AND t.request_id IS NOT NULL AND l.lane = t.lane
      AND q.queue = l.queue AND q.request_id = t.request_id AND q.task_id = t.task_id;
    DELETE FROM attempts WHERE task_id = ANY (ids);
    WITH gone AS (
        DELETE FROM tasks WHERE task_id = ANY (ids) RETURNING task_id, deadline(created_at, policy) AS starts_by
    )
    DELETE FROM deadlines d USING gone g WHERE d.starts_by = g.starts_by AND d.task_id = g.task_id;
END $$;

CREATE OR REPLACE FUNCTION prune(
    given_now bigint, given_epoch bigint, states text[], ages bigint[], keep bigint, discards_ms bigint, silent_ms bigint, most integer
) RETURNS TABLE (current_epoch bigint, pruned integer) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
DECLARE
    now_ms bigint := time_ms(given_now);
    ids uuid[] := '{}';
    more uuid[];
    surplus bigint;
BEGIN
    pruned := 0;
    current_epoch := held_epoch();
    IF current_epoch <> given_epoch THEN
        RETURN NEXT;
        RETURN;
    END IF;
    FOR n IN 1..cardinality(states) LOOP
        SELECT array_agg(task_id) INTO more FROM (
            SELECT task_id FROM finished WHERE state = states[n] AND finished_at <= now_ms - ages[n]
            ORDER BY finished_at LIMIT most - cardinality(ids) FOR UPDATE SKIP LOCKED
        ) old;
        ids := ids || coalesce(more, '{}');
    END LOOP;
    IF cardinality(ids) = 0 THEN
        FOR n IN 1..cardinality(states) LOOP
            SELECT coalesce(sum(number), 0) - keep INTO surplus FROM tally WHERE state = states[n];
            CONTINUE WHEN surplus <= 0;
            SELECT array_agg(task_id) INTO more FROM (
                SELECT task_id FROM finished WHERE state = states[n]
                ORDER BY finished_at LIMIT least(surplus, most - cardinality(ids)) FOR UPDATE SKIP LOCKED
            ) old;
            ids := ids || coalesce(more, '{}');
        END LOOP;
    END IF;
    pruned := cardinality(ids);
    IF pruned > 0 THEN
        PERFORM forget(ids);
    END IF;
    pruned := pruned + forget_kept(now_ms, most - pruned);
    DELETE FROM discards WHERE number IN (
        SELECT number FROM discards WHERE discarded_at <= now_ms - discards_ms ORDER BY number LIMIT most);
    DELETE FROM workers WHERE expires_at <= now_ms - silent_ms;
    RETURN NEXT;
END $$;
