-- The end of a claim within the transaction in which its task has written.

-- Acks the claim, or refuses, and then nothing of the transaction can be committed:
--   HF001  the claim is not current any more; it was not even if this very ack was made before, in another transaction
--   HF002  this is not the transaction that was begun for the claim: the task has ended that one
CREATE OR REPLACE FUNCTION complete(given_now bigint, id uuid, given_token text, given_result bytea) RETURNS void
LANGUAGE plpgsql {path} AS $$
BEGIN
    IF current_setting('holdfast.claim', true) IS DISTINCT FROM given_token THEN
        RAISE EXCEPTION 'the transaction was ended inside the block' USING ERRCODE = 'HF002';
    END IF;
    IF NOT ack_one(id, given_token, time_ms(given_now), given_result) THEN
        RAISE EXCEPTION 'the claim is not current any more' USING ERRCODE = 'HF001';
    END IF;
END $$;

-- What has become of a claim: 'claimed' (still current), 'succeeded' (ended by its ack), 'lost' (otherwise).
-- Waits for a transaction that is about to ack it. The locks are also writes, so that a safe call has to wait for standbys.
CREATE OR REPLACE FUNCTION outcome_of(id uuid, given_token text) RETURNS TABLE (outcome text) LANGUAGE plpgsql {path} AS $$
BEGIN
    PERFORM FROM claims c WHERE c.task_id = id AND {token} = given_token FOR UPDATE;
    IF FOUND THEN
        RETURN QUERY SELECT {claimed}::text;
        RETURN;
    END IF;
    PERFORM FROM finished c WHERE c.task_id = id AND c.state = {succeeded} AND {token} = given_token FOR UPDATE;
    RETURN QUERY SELECT CASE WHEN FOUND THEN {succeeded}::text ELSE 'lost' END;
END $$;
