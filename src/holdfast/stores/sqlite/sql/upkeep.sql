-- Upkeep: what must happen although nobody asked.

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
SELECT queue FROM waiting WHERE queue IS NOT NULL AND queue NOT IN (SELECT queue FROM paused)

-- name: expired
SELECT t.task_id, t.token, t.attempt, e.policy, t.worker_id
FROM tasks t INDEXED BY claimed JOIN envelopes e USING (seq)
WHERE t.state = {claimed} AND t.lease_expires_at_ms <= :now
ORDER BY t.lease_expires_at_ms, t.seq
LIMIT :limit

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
SELECT epoch FROM duties WHERE name = ?

-- name: duty
SELECT owner, epoch, expires_at_ms FROM duties WHERE name = ?

-- name: put_duty
INSERT INTO duties (name, owner, epoch, expires_at_ms) VALUES (:name, :owner, :epoch, :expires_at_ms)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, epoch = excluded.epoch, expires_at_ms = excluded.expires_at_ms

-- name: old_finished
SELECT seq FROM tasks
WHERE state = :state AND finished_at_ms <= :before
ORDER BY finished_at_ms LIMIT :limit

-- name: seq_span
SELECT max(seq) - min(seq) + 1 FROM tasks

-- name: count_finished
SELECT count(*) FROM tasks
WHERE state = :state AND finished_at_ms IS NOT NULL

-- name: oldest_finished
SELECT seq FROM tasks
WHERE state = :state AND finished_at_ms IS NOT NULL
ORDER BY finished_at_ms LIMIT :limit

-- name: prune_discards
DELETE FROM discards WHERE seq IN (SELECT seq FROM discards WHERE discarded_at_ms <= :before ORDER BY seq LIMIT :limit)

-- name: prune_workers
DELETE FROM workers WHERE expires_at_ms <= :before

-- name: put_worker
INSERT INTO workers (worker_id, record, started_at_ms, seen_at_ms, expires_at_ms)
VALUES (:worker_id, :record, :now, :now, :now + :ttl_ms)
ON CONFLICT (worker_id) DO UPDATE
SET record = excluded.record, seen_at_ms = excluded.seen_at_ms, expires_at_ms = excluded.expires_at_ms
RETURNING orders

-- name: order_worker
UPDATE workers SET orders = :orders WHERE worker_id = :worker_id

-- name: drop_worker
DELETE FROM workers WHERE worker_id = ?

-- name: pause
INSERT INTO paused (queue) VALUES (?) ON CONFLICT DO NOTHING

-- name: resume
DELETE FROM paused WHERE queue = ?

-- name: step
SELECT step_ms FROM steps WHERE queue = ?

-- name: put_step
INSERT INTO steps (queue, step_ms) VALUES (:queue, :step_ms)
ON CONFLICT (queue) DO UPDATE SET step_ms = excluded.step_ms

-- name: drop_step
DELETE FROM steps WHERE queue = ?

-- name: rank_again
-- Tasks of priority 0 stand where they stood, whatever a level is worth.
UPDATE tasks SET rank = run_at_ms - priority * :step_ms
WHERE state = {ready} AND queue = :queue AND priority <> 0
