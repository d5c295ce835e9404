#!lua
-- Enqueues one task that is ready at once: the writes that enqueue.lua makes for it, without the bookkeeping of a batch.
-- ARGV: now, version of the map, id, type, queue, priority, payload, request_id or '', names and values of other fields…
-- Reply: its number of arrival; 0 if the task is known or the map is newer: nothing was done, and enqueue.lua says more.
local call, base, now, id, type, queue, priority, request = redis.call, KEYS[1], ARGV[1], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[8]
local map = call('GET', base .. '/map')
if map and tonumber(map) > tonumber(ARGV[2]) then return 0 end
if request ~= '' and call('HEXISTS', base .. '/req/' .. queue, request) == 1 then return 0 end
local key = base .. '/t/' .. id
if call('EXISTS', key) == 1 then return 0 end
-- Text all the way: Redis is slow to convert the numbers of Lua.
if now == '' then
  local time = call('TIME')
  now = time[1] .. string.sub('00000' .. time[2], -6, -4)
end
call('HSET', key, 's', {ready}, 'q', queue, 'y', type, 'p', priority, 'r', now, 'c', now, 'a', '0', 'd', '0', 'b', ARGV[7],
     unpack(ARGV, 9))
if request ~= '' then call('HSET', base .. '/req/' .. queue, request, id) end
local number = call('INCRBY', base .. '/seq', '1')
call('ZADD', base .. '/all', number, id)
local suffix = priority == '0' and '' or '/' .. priority
call('ZADD', base .. '/ready/' .. queue .. '/' .. type .. suffix, now, id)
local is_new = call('ZADD', base .. '/types/' .. queue .. suffix, 'LT', now, type)
if is_new == 1 and suffix ~= '' then call('SADD', base .. '/levels/' .. queue, priority) end
call('HINCRBY', base .. '/n', queue .. '/' .. {ready}, '1')
local wakeup = base .. '/wakeup/' .. queue
if call('LLEN', wakeup) == 0 then
  call('RPUSH', wakeup, '!')
  call('PEXPIRE', wakeup, {wakeup_ms})
end
return number
