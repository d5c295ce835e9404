-- The path of a task: enqueue, reserve, extend, settle. State names are rendered in by statements.py.

-- name: last_seq
SELECT coalesce(max(seq), 0) FROM tasks

-- name: insert_task
-- Answers only for rows that are new: a known task_id or request_id is left alone.
INSERT INTO tasks (seq, task_id, queue, type, state, priority, rank, run_at_ms, created_at_ms, request_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
RETURNING seq

-- name: insert_envelope
INSERT INTO envelopes (seq, payload, headers, policy) VALUES (?, ?, ?, ?)

-- name: known_task
SELECT t.task_id, t.type, e.payload
FROM tasks t JOIN envelopes e USING (seq)
WHERE t.task_id = ?

-- name: known_request
SELECT t.task_id, t.type, e.payload
FROM tasks t JOIN envelopes e USING (seq)
WHERE t.queue = ? AND t.request_id = ?

-- name: next_due
SELECT min(run_at_ms) FROM tasks WHERE state IN ({scheduled}, {retry_pending})

-- name: ready_types
-- The types that wait in a queue, by stepping from one to the next in the index.
WITH RECURSIVE step (type) AS (
    SELECT min(type) FROM tasks WHERE state = {ready} AND queue = :queue
    UNION ALL
    SELECT (SELECT min(type) FROM tasks WHERE state = {ready} AND queue = :queue AND type > step.type)
    FROM step WHERE step.type IS NOT NULL
)
SELECT type FROM step WHERE type IS NOT NULL

-- name: paused_queues
SELECT queue FROM paused

-- name: claim
-- {candidates} is a merge of one ordered index range a type: see reserving.py.
UPDATE tasks
SET state = {claimed},
    attempt = attempt + 1,
    deliveries = deliveries + 1,
    token = :epoch || '.' || (deliveries + 1) || '.' || :claim_id,
    claim_id = :claim_id,
    worker_id = :worker_id,
    claimed_at_ms = :now,
    lease_expires_at_ms = :now + :lease_ms
WHERE seq IN ({candidates})

-- name: claimed_by_id
SELECT t.task_id, t.token, t.type, t.queue, e.payload, e.headers, t.priority, e.policy, t.attempt, t.created_at_ms,
       t.rank, t.seq
FROM tasks t JOIN envelopes e USING (seq)
WHERE t.state = {claimed} AND t.claim_id = ?

-- name: is_claimed
SELECT 1 FROM tasks WHERE state = {claimed} AND claim_id = ? LIMIT 1

-- name: extend
-- A lease is never shortened.
UPDATE tasks
SET lease_expires_at_ms = max(lease_expires_at_ms, :now + :lease_ms),
    progress = coalesce(:progress, progress)
WHERE task_id = :task_id AND state = {claimed} AND token = :token
RETURNING cancel_requested

-- name: record_attempts
-- One line of history for every claim in :changes that is still current.
-- A change is [task_id, token, outcome, error_type, error, result, delay_ms, lapsed_only, reason].
INSERT INTO attempts (seq, delivery, attempt, token, worker_id, event, outcome, started_at_ms, ended_at_ms,
                      error_type, error, result)
SELECT t.seq, t.deliveries, t.attempt, t.token, t.worker_id, :event, c.value ->> 2, t.claimed_at_ms, :now,
       c.value ->> 3, c.value ->> 4, CAST(c.value ->> 5 AS BLOB)
FROM json_each(:changes) c CROSS JOIN tasks t ON t.task_id = c.value ->> 0
WHERE t.state = {claimed} AND t.token = c.value ->> 1
  AND (NOT c.value ->> 7 OR t.lease_expires_at_ms <= :now)

-- name: settle
-- Rendered once an event by settling.py, from lifecycle.TRANSITIONS.
UPDATE tasks
SET state = {new_state},
    run_at_ms = {new_run_at},
    attempt = attempt - {spared},
    finished_at_ms = {new_finished_at},
    reason = {new_reason},
    token = NULL, claim_id = NULL, worker_id = NULL, claimed_at_ms = NULL, lease_expires_at_ms = NULL,
    cancel_requested = 0
FROM json_each(:changes) c
WHERE tasks.task_id = c.value ->> 0 AND tasks.state = {claimed} AND tasks.token = c.value ->> 1

-- name: standing
SELECT state, run_at_ms, attempt, deliveries, token, lease_expires_at_ms, cancel_requested, finished_at_ms, reason,
       queue, seq
FROM tasks WHERE task_id = ?

-- name: settled_by
SELECT event FROM attempts WHERE seq = ? AND token = ?

-- name: cancel_waiting
UPDATE tasks SET state = {cancelled}, finished_at_ms = :now, reason = :reason WHERE task_id = :task_id

-- name: request_cancel
UPDATE tasks SET cancel_requested = 1, reason = :reason WHERE task_id = :task_id

-- name: replay
UPDATE tasks
SET state = {ready}, run_at_ms = :now, rank = :now - priority * :step_ms, attempt = 0,
    finished_at_ms = NULL, reason = NULL
WHERE task_id = :task_id

-- name: record_discard
INSERT INTO discards (task_id, type, queue, payload, reason, error, discarded_at_ms)
SELECT t.task_id, t.type, t.queue, e.payload, :reason,
       coalesce((SELECT a.error FROM attempts a WHERE a.seq = t.seq ORDER BY a.delivery DESC LIMIT 1), ''), :now
FROM tasks t JOIN envelopes e USING (seq)
WHERE t.task_id = :task_id

-- name: delete_attempts
DELETE FROM attempts WHERE seq = ?

-- name: delete_envelope
DELETE FROM envelopes WHERE seq = ?

-- name: delete_task
DELETE FROM tasks WHERE seq = ?
