-- The partition map, as this file keeps it.

-- name: map_version
SELECT version FROM partition_map

-- name: partition_map
SELECT map FROM partition_map

-- name: put_partition_map
INSERT INTO partition_map (only_row, version, map) VALUES (1, :version, :map)
ON CONFLICT (only_row) DO UPDATE SET version = excluded.version, map = excluded.map
