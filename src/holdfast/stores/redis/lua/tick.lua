#!lua
-- Replaces or removes a schedule and records the tasks of its tick, both or neither.
-- ARGV: now, … (see scheduling.lua), tasks (msgpack, see recording.lua), payload of each…      Reply: {'stale_map', version} if the map is newer, else see scheduling.lua
-- include: common
-- include: recording
-- include: scheduling
-- The owner works on its partition by whatever map: tasks with a request_id, as those of ticks are, stay where they went first.
local newer = ARGV[3] == '' and newer_map(ARGV[2])
if newer then return {'stale_map', newer} end
local other = instead()
if other then return other end
local recorded = record_all(ARGV[9], 10)
put()
finish()
return {1, tonumber(recorded[1])}
