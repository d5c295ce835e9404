-- The partition map.

CREATE OR REPLACE FUNCTION get_map() RETURNS TABLE (map bytea) LANGUAGE plpgsql {look} AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT map FROM partition_map;
END $$;

-- Replaces the map if it is still the one of the version that was looked at.
CREATE OR REPLACE FUNCTION put_map(old_version bigint, new_version bigint, new_map bytea) RETURNS boolean
LANGUAGE plpgsql {path} AS $$
BEGIN
    IF old_version = 0 THEN
        INSERT INTO partition_map (version, map) VALUES (new_version, new_map) ON CONFLICT DO NOTHING;
    ELSE
        UPDATE partition_map SET version = new_version, map = new_map WHERE version = old_version;
    END IF;
    RETURN FOUND;
END $$;
