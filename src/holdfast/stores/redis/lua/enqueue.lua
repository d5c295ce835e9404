#!lua
-- Records tasks, each at most once.
-- ARGV: now, version of the map, tasks (msgpack, see tasks.lua), payload of each…
-- Reply: {'stale_map', version} if the map is newer and nothing was done; else {last number of arrival, …}, one each, see tasks.lua
-- include: common
-- include: indexes
-- include: tasks
local newer = newer_map(ARGV[2])
if newer then return {'stale_map', newer} end
local replies = record_all(ARGV[3], 4)
finish()
return replies
