#!lua flags=allow-oom
-- Records one part of a batch that is too large for one script. The first part decides for all of them, by the map and by
-- the server's memory, so that a batch that is refused is recorded in no part; the others follow on a full server too.
-- ARGV: now, version of the map, name of the batch, number of the part, bytes that the whole batch needs, ms within which it may be
--       repeated, tasks (msgpack, see tasks.lua), payload of each…
-- Reply: {'stale_map', version} or {'refused'}, and nothing was done; an OOM error from the first part that finds no room; else as enqueue
-- include: common
-- include: indexes
-- include: tasks
local admitted_key, part = base .. '/batch/' .. ARGV[3], tonumber(ARGV[4])

local function has_room(bytes)
  local info = redis.call('INFO', 'memory')
  local used, most = string.match(info, 'used_memory:(%d+)'), tonumber(string.match(info, 'maxmemory:(%d+)') or 0)
  return most == 0 or used + bytes <= most
end

-- A repeat that finds its tasks there needs no room.
local function all_known()
  for _, task in ipairs(cmsgpack.unpack(ARGV[7])) do
    local id, queue, request = task[1], task[3], task[7]
    if redis.call('EXISTS', task_key(id)) == 0
      and not (request and redis.call('HEXISTS', base .. '/req/' .. queue, request) == 1) then return false end
  end
  return true
end

local admitted = redis.call('EXISTS', admitted_key) == 1
if part == 1 and not admitted then
  local newer = newer_map(ARGV[2])
  if newer then return {'stale_map', newer} end
  admitted = has_room(tonumber(ARGV[5]))
  if admitted then redis.call('SET', admitted_key, '1', 'PX', ARGV[6]) end
end
if not admitted and not all_known() then
  if part == 1 then return redis.error_reply('OOM no room for the whole batch') end
  return {'refused'}
end
local replies = record_all(ARGV[7], 8)
finish()
return replies
