-- What is kept under keys.

-- name: kept
SELECT value FROM kept WHERE key = :key AND expires_at_ms > :now

-- name: holder
SELECT state = {claimed} AND token = :token FROM tasks WHERE task_id = :task_id

-- name: keep
-- Only a value whose time is over is replaced.
INSERT INTO kept (key, value, expires_at_ms) VALUES (:key, :value, :now + :ttl_ms)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at_ms = excluded.expires_at_ms
WHERE expires_at_ms <= :now

-- name: prune_kept
DELETE FROM kept WHERE rowid IN (SELECT rowid FROM kept WHERE expires_at_ms <= :now ORDER BY expires_at_ms LIMIT :limit)
