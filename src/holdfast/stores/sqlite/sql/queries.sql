-- Queries: nothing here changes anything.

-- name: task
SELECT t.task_id, t.type, t.queue, t.state, t.priority, t.attempt, t.deliveries, t.created_at_ms, t.run_at_ms,
       t.finished_at_ms, t.worker_id, t.claimed_at_ms, t.lease_expires_at_ms, t.cancel_requested, t.progress,
       t.reason, t.request_id, e.payload,
       CAST(e.headers AS BLOB), CAST(e.policy AS BLOB), t.seq, t.result
FROM tasks t {hint} JOIN envelopes e USING (seq)
WHERE {conditions}

-- name: step_back
-- Where a step of a search ends that reads this many tasks and one.
SELECT seq FROM tasks WHERE seq < ? ORDER BY seq DESC LIMIT 1 OFFSET ?

-- name: count_few
SELECT count(*) FROM (SELECT 1 FROM tasks t {hint} WHERE {conditions} LIMIT ?)

-- name: history
SELECT delivery, attempt, worker_id, outcome, started_at_ms, ended_at_ms, CAST(error AS BLOB)
FROM attempts WHERE seq = ? ORDER BY delivery

-- name: count_ready
SELECT queue, {ready}, count(*), min(rank + priority * {default_step_ms}) FROM tasks WHERE state = {ready} GROUP BY queue

-- name: oldest_by_step
-- Apart from the others: a look at the step of every task would make their count slower by a third.
SELECT queue, min(rank + priority * step_ms)
FROM queues CROSS JOIN tasks INDEXED BY ready USING (queue)
WHERE step_ms <> {default_step_ms} AND state = {ready} GROUP BY queue

-- name: count_rest
SELECT queue, state, count(*) FROM tasks WHERE state IN ({scheduled}, {retry_pending}) GROUP BY queue, state
UNION ALL
SELECT queue, state, count(*) FROM tasks WHERE state = {claimed} GROUP BY queue, state
UNION ALL
SELECT queue, state, count(*) FROM tasks WHERE state = {blocked} GROUP BY queue, state
UNION ALL
SELECT queue, state, count(*) FROM tasks WHERE delete_at_ms IS NOT NULL GROUP BY queue, state

-- name: queues
SELECT queue, paused, step_ms FROM queues

-- name: workers
SELECT record, started_at_ms, seen_at_ms, expires_at_ms FROM workers ORDER BY worker_id
