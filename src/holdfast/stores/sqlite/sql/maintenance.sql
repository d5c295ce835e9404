-- Maintenance of one partition, leadership, and the list of workers.

-- name: promote
UPDATE tasks
SET state = {ready}, rank = run_at_ms - priority * {step}
WHERE seq IN (
    SELECT seq FROM tasks
    WHERE state IN ({scheduled}, {retry_pending}) AND run_at_ms <= :now
    ORDER BY run_at_ms LIMIT :limit
)
RETURNING queue

-- name: next_due
SELECT min(run_at_ms) FROM tasks WHERE state IN ({scheduled}, {retry_pending})

-- name: queues_that_wait
-- From one queue to the next: a look at every ready task would take too long.
WITH RECURSIVE waiting (queue) AS (
    SELECT min(queue) FROM tasks INDEXED BY ready WHERE state = {ready}
    UNION ALL
    SELECT (SELECT min(queue) FROM tasks INDEXED BY ready WHERE state = {ready} AND queue > waiting.queue)
    FROM waiting WHERE waiting.queue IS NOT NULL
)
SELECT queue FROM waiting WHERE queue IS NOT NULL AND queue NOT IN (SELECT queue FROM queues WHERE paused)

-- name: expired
-- Also leases that lie further ahead than they can, because the clock was set back since.
SELECT t.task_id, t.token, t.attempt, CAST(e.policy AS BLOB), t.worker_id, t.lease_expires_at_ms > :now
FROM tasks t INDEXED BY claimed JOIN envelopes e USING (seq)
WHERE t.state = {claimed} AND (t.lease_expires_at_ms <= :now OR t.lease_expires_at_ms > :now + t.lease_ms)
ORDER BY t.lease_expires_at_ms, t.seq
LIMIT :limit

-- name: shorten_leases
UPDATE tasks INDEXED BY claimed SET lease_expires_at_ms = :now + lease_ms
WHERE state = {claimed} AND lease_expires_at_ms > :now + lease_ms

-- name: deadline_has_passed
SELECT 1 FROM deadlines WHERE expires_at_ms <= ? LIMIT 1

-- name: deadlines_passed
-- Also those that do not count any more, because the task has begun or was cancelled.
SELECT d.seq, t.task_id, t.deliveries = 0 AND t.state IN ({blocked}, {scheduled}, {ready})
FROM deadlines d INDEXED BY deadlines_by_time JOIN tasks t USING (seq)
WHERE d.expires_at_ms <= :now
ORDER BY d.expires_at_ms, d.seq
LIMIT :limit

-- name: epoch
SELECT epoch FROM leaders WHERE name = ?

-- name: leader
SELECT owner, epoch, expires_at_ms, ttl_ms FROM leaders WHERE name = ?

-- name: put_leader
INSERT INTO leaders (name, owner, epoch, expires_at_ms, ttl_ms) VALUES (:name, :owner, :epoch, :expires_at_ms, :ttl_ms)
ON CONFLICT (name) DO UPDATE
SET owner = excluded.owner, epoch = excluded.epoch, expires_at_ms = excluded.expires_at_ms, ttl_ms = excluded.ttl_ms

-- name: old_finished
SELECT seq FROM tasks
WHERE state = :state AND delete_at_ms < :now
ORDER BY delete_at_ms LIMIT :limit

-- name: finished_before
SELECT seq FROM tasks INDEXED BY finished
WHERE state = :state AND delete_at_ms IS NOT NULL AND finished_at_ms <= :before
ORDER BY delete_at_ms LIMIT :limit

-- name: seq_span
SELECT max(seq) - min(seq) + 1 FROM tasks

-- name: count_finished
SELECT count(*) FROM tasks
WHERE state = :state AND delete_at_ms IS NOT NULL

-- name: oldest_finished
SELECT seq FROM tasks
WHERE state = :state AND delete_at_ms IS NOT NULL
ORDER BY delete_at_ms LIMIT :limit

-- name: prune_workers
DELETE FROM workers WHERE expires_at_ms <= :before

-- name: put_worker
INSERT INTO workers (worker_id, record, started_at_ms, seen_at_ms, expires_at_ms)
VALUES (:worker_id, :record, :now, :now, :now + :ttl_ms)
ON CONFLICT (worker_id) DO UPDATE
SET record = excluded.record, seen_at_ms = excluded.seen_at_ms, expires_at_ms = excluded.expires_at_ms

-- name: drop_worker
DELETE FROM workers WHERE worker_id = ?
