-- Upkeep: what must happen although nobody asked.

-- name: promote
UPDATE tasks
SET state = {ready}, rank = run_at_ms - priority * :step_ms
WHERE seq IN (
    SELECT seq FROM tasks
    WHERE state IN ({scheduled}, {retry_pending}) AND run_at_ms <= :now
    ORDER BY run_at_ms LIMIT :limit
)
RETURNING queue

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

-- name: drop_worker
DELETE FROM workers WHERE worker_id = ?

-- name: pause
INSERT INTO paused (queue) VALUES (?) ON CONFLICT DO NOTHING

-- name: resume
DELETE FROM paused WHERE queue = ?
