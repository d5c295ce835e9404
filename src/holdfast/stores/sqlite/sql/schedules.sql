-- Schedules: one JSON document each.

-- name: schedule
SELECT version, schedule FROM schedules WHERE name = ?

-- name: schedules
SELECT schedule FROM schedules ORDER BY next_at_ms IS NULL, next_at_ms, name LIMIT :limit

-- name: schedules_due
SELECT schedule FROM schedules WHERE next_at_ms <= :before ORDER BY next_at_ms, name LIMIT :limit

-- name: next_tick
SELECT min(next_at_ms) FROM schedules WHERE next_at_ms IS NOT NULL

-- name: put_schedule
INSERT INTO schedules (name, version, next_at_ms, schedule) VALUES (:name, :version, :next_at_ms, :schedule)
ON CONFLICT (name) DO UPDATE
SET version = excluded.version, next_at_ms = excluded.next_at_ms, schedule = excluded.schedule

-- name: drop_schedule
DELETE FROM schedules WHERE name = ?
