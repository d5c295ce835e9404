-- Documents: replaced by whoever has read the last version.

CREATE OR REPLACE FUNCTION get_documents(given_kind text, given_name text)
RETURNS TABLE (kind text, name text, value bytea, version bigint) LANGUAGE plpgsql {path} AS $$
#variable_conflict use_column
BEGIN
    IF given_name IS NULL THEN
        RETURN QUERY SELECT d.kind, d.name, d.value, d.version FROM documents d WHERE d.kind = given_kind ORDER BY d.name;
    ELSE
        RETURN QUERY
        SELECT d.kind, d.name, d.value, d.version FROM documents d WHERE d.kind = given_kind AND d.name = given_name;
    END IF;
END $$;

-- Replaces a document, or removes it if there is no new value, if its version is the expected one; whether it stands as
-- wanted now. The same call again changes nothing.
CREATE OR REPLACE FUNCTION put_document(given_kind text, given_name text, expected bigint, new_value bytea) RETURNS boolean
LANGUAGE plpgsql {path} AS $$
DECLARE
    found_version bigint;
    found_value bytea;
BEGIN
    -- There may be no row yet that a second writer could wait for.
    PERFORM pg_advisory_xact_lock('documents'::regclass::integer, hashtext(given_kind || '/' || given_name));
    SELECT d.version, d.value INTO found_version, found_value FROM documents d
    WHERE d.kind = given_kind AND d.name = given_name;
    IF coalesce(found_version, 0) <> expected THEN
        RETURN found_value IS NOT DISTINCT FROM new_value AND (new_value IS NULL OR found_version = expected + 1);
    END IF;
    IF new_value IS NULL THEN
        DELETE FROM documents d WHERE d.kind = given_kind AND d.name = given_name;
    ELSE
        INSERT INTO documents AS d (kind, name, version, value) VALUES (given_kind, given_name, expected + 1, new_value)
        ON CONFLICT ON CONSTRAINT documents_pkey DO UPDATE SET version = excluded.version, value = excluded.value;
    END IF;
    RETURN true;
END $$;
