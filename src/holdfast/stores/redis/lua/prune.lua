#!lua flags=allow-oom
-- Deletes finished tasks past their retention, by age first, then by count; then kept values whose time is over.
-- ARGV: now, epoch, limit, keep, discards_ms, silent_worker_ms, ages (msgpack: [[state, age_ms, age_ms while the server is nearly full]…])
-- Reply: {count}, or {-1, current epoch} if the epoch is old
-- include: common
-- include: keeping
local current, limit, keep = epoch(), tonumber(ARGV[3]), tonumber(ARGV[4])
if tonumber(ARGV[2]) ~= current then return {-1, current} end
local ages, pruned = cmsgpack.unpack(ARGV[7]), 0

local function nearly_full()
  local info = redis.pcall('INFO', 'memory')
  if type(info) ~= 'string' then return false end
  local used, most = string.match(info, 'used_memory:(%d+)'), string.match(info, 'maxmemory:(%d+)')
  return used and most and tonumber(most) > 0 and tonumber(used) > 0.9 * tonumber(most)
end

local which = nearly_full() and 3 or 2

local function prune(state, ids)
  for _, id in ipairs(ids) do
    local f = redis.call('HMGET', task_key(id), 'q', 'i')
    erase(id, state, f[1], f[2])
    pruned = pruned + 1
  end
end

for _, age in ipairs(ages) do
  local done = base .. '/done/' .. age[1]
  prune(age[1], redis.call('ZRANGEBYSCORE', done, '-inf', text(now - age[which]), 'LIMIT', 0, limit - pruned))
end
if pruned == 0 then
  for _, age in ipairs(ages) do
    local done = base .. '/done/' .. age[1]
    local surplus = math.min(redis.call('ZCARD', done) - keep, limit - pruned)
    if surplus > 0 then prune(age[1], redis.call('ZRANGE', done, 0, surplus - 1)) end
  end
end

for _, key in ipairs(redis.call('ZRANGEBYSCORE', base .. '/kept', '-inf', now_text, 'LIMIT', 0, limit - pruned)) do
  redis.call('ZREM', base .. '/kept', key)
  redis.call('DEL', kept_key(key))
  pruned = pruned + 1
end

local last = redis.call('LINDEX', base .. '/discards', -1)
while last and cmsgpack.unpack(last)[6] <= now - tonumber(ARGV[5]) do
  redis.call('RPOP', base .. '/discards')
  last = redis.call('LINDEX', base .. '/discards', -1)
end
local beats = redis.call('HGETALL', base .. '/beats')
for n = 1, #beats, 2 do
  if cmsgpack.unpack(beats[n + 1])[3] <= now - tonumber(ARGV[6]) then
    redis.call('HDEL', base .. '/beats', beats[n])
    redis.call('HDEL', base .. '/workers', beats[n])
    redis.call('HDEL', base .. '/orders', beats[n])
  end
end
finish()
return { pruned }
