-- Documents: replaced by whoever has read the last version.

-- name: documents
SELECT kind, name, value, version FROM documents WHERE kind = ? ORDER BY name

-- name: document
SELECT kind, name, value, version FROM documents WHERE kind = ? AND name = ?

-- name: put_document
INSERT INTO documents (kind, name, version, value) VALUES (:kind, :name, :version, :value)
ON CONFLICT (kind, name) DO UPDATE SET version = excluded.version, value = excluded.value

-- name: drop_document
DELETE FROM documents WHERE kind = ? AND name = ?
