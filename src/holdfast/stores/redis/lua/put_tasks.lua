#!lua
-- Replaces or removes a document and enqueues tasks with it, both or neither.
-- ARGV: now, … (see document_write.lua), tasks (msgpack, see tasks.lua), payload of each…
-- Reply: {'stale_map', version} if the map is newer, else see document_write.lua
-- include: common
-- include: indexes
-- include: tasks
-- include: document
-- include: document_write
-- The leader works on its partition by whatever map: tasks with a request_id, as those of occurrences are, stay where they went first.
local newer = ARGV[3] == '' and newer_map(ARGV[2])
if newer then return {'stale_map', newer} end
local other = instead()
if other then return other end
local recorded = record_all(ARGV[14], 15)
local new = write()
finish()
return {1, '', new, recorded[1]}
