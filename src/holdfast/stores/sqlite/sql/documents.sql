-- Documents: everything that is not a task.

-- name: document
SELECT kind, name, value, version, due_at_ms, expires_at_ms FROM documents
WHERE kind = :kind AND name = :name AND (expires_at_ms IS NULL OR expires_at_ms > :now)

-- name: first_documents
SELECT kind, name, value, version, due_at_ms, expires_at_ms FROM documents
WHERE kind = :kind AND (expires_at_ms IS NULL OR expires_at_ms > :now)
ORDER BY name

-- name: next_documents
SELECT kind, name, value, version, due_at_ms, expires_at_ms FROM documents
WHERE kind = :kind AND name > :cursor AND (expires_at_ms IS NULL OR expires_at_ms > :now)
ORDER BY name

-- name: due_documents
SELECT kind, name, value, version, due_at_ms, expires_at_ms FROM documents INDEXED BY documents_by_due
WHERE kind = :kind AND due_at_ms <= :before AND (expires_at_ms IS NULL OR expires_at_ms > :now)
ORDER BY due_at_ms, name

-- name: discards
SELECT kind, name, value, version, due_at_ms, expires_at_ms, written_at_ms, id FROM documents INDEXED BY discards
WHERE kind = 'discard' AND (written_at_ms, id) < (:written_at_ms, :id)
ORDER BY written_at_ms DESC, id DESC

-- name: next_due_document
SELECT min(due_at_ms) FROM documents INDEXED BY documents_by_due WHERE kind = ? AND due_at_ms IS NOT NULL

-- name: map_version
SELECT version FROM documents INDEXED BY map_version WHERE kind = 'map'

-- name: put_document
INSERT INTO documents (kind, name, version, value, due_at_ms, expires_at_ms, written_at_ms)
VALUES (:kind, :name, :version, :value, :due_at_ms, :expires_at_ms, :now)
ON CONFLICT (kind, name) DO UPDATE
SET version = excluded.version, value = excluded.value, due_at_ms = excluded.due_at_ms,
    expires_at_ms = excluded.expires_at_ms, written_at_ms = excluded.written_at_ms

-- name: drop_document
DELETE FROM documents WHERE kind = :kind AND name = :name

-- name: prune_documents
DELETE FROM documents WHERE id IN (
    SELECT id FROM documents INDEXED BY documents_by_expiry
    WHERE expires_at_ms <= :now ORDER BY expires_at_ms LIMIT :limit
)

-- name: prune_discards
DELETE FROM documents WHERE id IN (
    SELECT id FROM documents INDEXED BY discards
    WHERE kind = 'discard' AND written_at_ms <= :before ORDER BY written_at_ms LIMIT :limit
)

-- name: prune_orders
DELETE FROM documents WHERE kind = 'orders' AND name NOT IN (SELECT worker_id FROM workers)

-- name: holder
SELECT state = {claimed} AND token = :token FROM tasks WHERE task_id = :task_id

-- name: discarded
SELECT t.task_id, t.type, t.queue, e.payload,
       (SELECT CAST(a.error AS BLOB) FROM attempts a WHERE a.seq = t.seq ORDER BY a.delivery DESC LIMIT 1)
FROM tasks t JOIN envelopes e USING (seq)
WHERE t.seq = ?

-- name: queue
SELECT paused, step_ms FROM queues WHERE queue = ?

-- name: put_queue
INSERT INTO queues (queue, paused, step_ms) VALUES (:queue, :paused, :step_ms)
ON CONFLICT (queue) DO UPDATE SET paused = excluded.paused, step_ms = excluded.step_ms

-- name: drop_queue
DELETE FROM queues WHERE queue = ?

-- name: rank_again
-- Tasks of priority 0 stand where they stood, whatever a level is worth.
UPDATE tasks SET rank = run_at_ms - priority * :step_ms
WHERE state = {ready} AND queue = :queue AND priority <> 0
