-- The path of a task: enqueue, reserve, extend, settle. State names are rendered in by stores/sqltext.py.

-- name: before_enqueue
-- The last number given out, the next task due, and what priority is worth where that is not the default: one look.
SELECT (SELECT coalesce(max(seq), 0) FROM tasks),
       (SELECT min(run_at_ms) FROM tasks WHERE state IN ({scheduled}, {retry_pending})),
       (SELECT json_group_object(queue, step_ms) FROM queues)

-- name: insert_task
-- Answers only for rows that are new: a known task_id or request_id is left alone.
INSERT INTO tasks (seq, task_id, queue, type, state, priority, rank, run_at_ms, created_at_ms, request_id,
                   result_ttl_ms, dead_letter_ttl_ms, room)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, zeroblob({room_bytes}))
ON CONFLICT DO NOTHING
RETURNING seq

-- name: insert_envelope
INSERT INTO envelopes (seq, payload, headers, policy) VALUES (?, ?, ?, ?)

-- name: enqueue_one
-- A task that is ready at once and has no priority, in a transaction of its own; nothing if it, or its request, is
-- known, or if the map is newer than the caller's. Python sees none of it half done: no statement gives a row.
BEGIN IMMEDIATE;
INSERT INTO tasks (task_id, queue, type, request_id, state, priority, rank, run_at_ms, created_at_ms,
                   result_ttl_ms, dead_letter_ttl_ms, room)
SELECT ?1, ?2, ?3, ?4, {ready}, 0, ?5, ?5, ?5, ?6, ?7, zeroblob({room_bytes})
WHERE NOT EXISTS (SELECT 1 FROM documents INDEXED BY map_version WHERE kind = 'map' AND version > ?8)
ON CONFLICT DO NOTHING;
INSERT INTO envelopes (seq, payload, headers, policy) SELECT last_insert_rowid(), ?, ?, ? WHERE changes() = 1;
COMMIT

-- name: insert_deadline
INSERT INTO deadlines (seq, expires_at_ms) VALUES (?, ?)

-- name: known_task
SELECT t.task_id, t.queue, t.type, e.payload
FROM tasks t JOIN envelopes e USING (seq)
WHERE t.task_id = ?

-- name: known_request
SELECT t.task_id, t.queue, t.type, e.payload
FROM tasks t JOIN envelopes e USING (seq)
WHERE t.queue = ? AND t.request_id = ?

-- name: next_ready_type
-- The next type that waits in a queue: one step in the index, however many tasks there are.
SELECT type FROM tasks WHERE state = {ready} AND queue = ? AND type > ? ORDER BY type LIMIT 1

-- name: ready_type_from
-- The same, beginning with this one.
SELECT type FROM tasks WHERE state = {ready} AND queue = ? AND type >= ? ORDER BY type LIMIT 1

-- name: ready_types
-- All types that wait in a queue: a step in the index for each, however many tasks there are.
WITH RECURSIVE waiting (type) AS (
    SELECT (SELECT type FROM tasks WHERE state = {ready} AND queue = :queue ORDER BY type LIMIT 1)
    UNION ALL
    SELECT (SELECT t.type FROM tasks t WHERE t.state = {ready} AND t.queue = :queue AND t.type > w.type ORDER BY t.type LIMIT 1)
    FROM waiting w WHERE w.type IS NOT NULL
)
SELECT type FROM waiting WHERE type IS NOT NULL

-- name: first_types
-- Of these types, those whose first tasks come first.
SELECT first.type FROM (
    SELECT k.value AS type, (
        SELECT t.seq FROM tasks t WHERE t.state = {ready} AND t.queue = :queue AND t.type = k.value ORDER BY t.rank, t.seq LIMIT 1
    ) AS seq
    FROM json_each(:types) k
) first CROSS JOIN tasks t ON t.seq = first.seq
ORDER BY t.rank, t.seq LIMIT :most

-- name: paused_queues
SELECT queue FROM queues WHERE paused

-- name: claim
-- {candidates} is a merge of one ordered index range a type: see claims.py.
UPDATE tasks
SET state = {claimed},
    attempt = attempt + 1,
    deliveries = deliveries + 1,
    token = :epoch || '.' || (deliveries + 1) || '.' || :claim_id,
    claim_id = :claim_id,
    worker_id = :worker_id,
    claimed_at_ms = :now,
    lease_expires_at_ms = :now + :lease_ms,
    lease_ms = :lease_ms,
    room = NULL
WHERE seq IN ({candidates})

-- name: unclaim
-- As if it had not been claimed in this transaction.
UPDATE tasks
SET state = {ready}, attempt = attempt - 1, deliveries = deliveries - 1,
    token = NULL, claim_id = NULL, worker_id = NULL, claimed_at_ms = NULL, lease_expires_at_ms = NULL, lease_ms = NULL,
    room = zeroblob({room_bytes})
WHERE seq = ?

-- name: claimed_by_id
-- Large payloads are read one by one, and only of tasks that are handed out. Text that is not UTF-8 makes a blob that
-- cannot be decoded, not a query that fails.
SELECT t.task_id, t.token, t.type, t.queue, iif(length(e.payload) <= {small_payload_bytes}, e.payload, NULL),
       CAST(e.headers AS BLOB), t.priority, CAST(e.policy AS BLOB), t.attempt, t.created_at_ms, t.claimed_at_ms, t.run_at_ms, t.rank, t.seq, length(e.payload)
FROM tasks t JOIN envelopes e USING (seq)
WHERE t.state = {claimed} AND t.claim_id = ?

-- name: payload
SELECT payload FROM envelopes WHERE seq = ?

-- name: held_by_id
SELECT seq FROM tasks WHERE state = {claimed} AND claim_id = ?

-- name: extend
-- A lease is never shortened, unless it was given before the clock was set back.
UPDATE tasks
SET lease_expires_at_ms = max(min(lease_expires_at_ms, :now + coalesce(lease_ms, :lease_ms)), :now + :lease_ms),
    lease_ms = max(coalesce(lease_ms, :lease_ms), :lease_ms),
    progress = coalesce(:progress, progress)
WHERE task_id = :task_id AND state = {claimed} AND token = :token
RETURNING cancel_requested

-- name: check_claim
SELECT cancel_requested FROM tasks WHERE task_id = :task_id AND state = {claimed} AND token = :token

-- name: ack
-- A change is [task_id, token, result]. The claim stays in the row: it is the last line of the history.
UPDATE tasks
SET state = {succeeded}, finished_at_ms = :now, delete_at_ms = :now + coalesce(result_ttl_ms, {result_ttl_ms}),
    result = CAST(c.value ->> 2 AS BLOB), reason = NULL, cancel_requested = 0
FROM json_each(:changes) c
WHERE tasks.task_id = c.value ->> 0 AND tasks.state = {claimed} AND tasks.token = c.value ->> 1

-- name: ack_one
UPDATE tasks
SET state = {succeeded}, finished_at_ms = :now, delete_at_ms = :now + coalesce(result_ttl_ms, {result_ttl_ms}),
    result = :result, reason = NULL, cancel_requested = 0
WHERE seq = :seq

-- name: record_attempt
INSERT INTO attempts (seq, delivery, attempt, token, worker_id, event, outcome, started_at_ms, ended_at_ms,
                      error_type, error)
SELECT seq, deliveries, attempt, token, worker_id, :event, :outcome, claimed_at_ms, :now, :error_type, :error
FROM tasks WHERE seq = :seq

-- name: settle
-- A task that is ready again has its place by what priority is worth now.
UPDATE tasks
SET state = :state, run_at_ms = :run_at_ms, rank = :run_at_ms - priority * {step}, attempt = :attempt,
    finished_at_ms = :finished_at_ms, reason = :reason,
    delete_at_ms = :finished_at_ms + iif(:state = {dead_lettered}, coalesce(dead_letter_ttl_ms, {dead_letter_ttl_ms}),
                                         coalesce(result_ttl_ms, {result_ttl_ms})),
    token = NULL, claim_id = NULL, worker_id = NULL, claimed_at_ms = NULL, lease_expires_at_ms = NULL, lease_ms = NULL,
    cancel_requested = 0, progress = iif(:finished_at_ms IS NULL, NULL, progress)
WHERE seq = :seq

-- name: standing
SELECT state, run_at_ms, attempt, deliveries, token, lease_expires_at_ms, cancel_requested, finished_at_ms, reason,
       priority, queue, seq
FROM tasks WHERE task_id = ?

-- name: settled_by
SELECT event FROM attempts WHERE seq = ? AND token = ? AND delivery > ?

-- name: trim_attempts
DELETE FROM attempts WHERE seq = ? AND delivery <= ?

-- name: request_cancel
UPDATE tasks SET cancel_requested = 1, reason = :reason WHERE seq = :seq

-- name: prioritize
UPDATE tasks
SET priority = :priority, rank = run_at_ms - :priority * {step}
WHERE seq = :seq

-- name: delete_attempts
DELETE FROM attempts WHERE seq = ?

-- name: delete_deadline
DELETE FROM deadlines WHERE seq = ?

-- name: delete_envelope
DELETE FROM envelopes WHERE seq = ?

-- name: delete_task
DELETE FROM tasks WHERE seq = ?
