#!lua flags=allow-oom
-- Deletes finished tasks whose time is over, then what is more than `keep`; then expired documents, old records of discarded tasks, and
-- workers that have been silent for long, with their orders.
-- ARGV: now, epoch, limit, keep, discards_ms, silent_worker_ms, nearly_full_ms, final states…
-- Reply: {count}, or {-1, current epoch} if the epoch is old
-- include: common
-- include: indexes
-- include: document
local current, limit, keep = epoch(), tonumber(ARGV[3]), tonumber(ARGV[4])
if tonumber(ARGV[2]) ~= current then return {-1, current} end
local SPARED = {spared_when_full}
local pruned = 0

local function nearly_full()
  local info = redis.pcall('INFO', 'memory')
  if type(info) ~= 'string' then return false end
  local used, most = string.match(info, 'used_memory:(%d+)'), string.match(info, 'maxmemory:(%d+)')
  return used and most and tonumber(most) > 0 and tonumber(used) > 0.9 * tonumber(most)
end

-- Those that ended after `before` stay.
local function prune(state, ids, before)
  for _, id in ipairs(ids) do
    local f = redis.call('HMGET', task_key(id), 'q', 'i', 'f')
    if not before or tonumber(f[3]) <= before then
      erase(id, state, f[1], f[2])
      pruned = pruned + 1
    end
  end
end

for n = 8, #ARGV do
  local over = redis.call('ZRANGEBYSCORE', base .. '/done/' .. ARGV[n], '-inf', '(' .. now_text, 'LIMIT', 0, limit - pruned)
  prune(ARGV[n], over)
end
if pruned == 0 then
  for n = 8, #ARGV do
    local done = base .. '/done/' .. ARGV[n]
    local surplus = math.min(redis.call('ZCARD', done) - keep, limit - pruned)
    if surplus > 0 then prune(ARGV[n], redis.call('ZRANGE', done, 0, surplus - 1)) end
  end
end
if pruned < limit and nearly_full() then
  for n = 8, #ARGV do
    if not SPARED[ARGV[n]] and pruned < limit then
      local first = redis.call('ZRANGE', base .. '/done/' .. ARGV[n], 0, limit - pruned - 1)
      prune(ARGV[n], first, now - tonumber(ARGV[7]))
    end
  end
end

for _, member in ipairs(redis.call('ZRANGEBYSCORE', base .. '/expires', '-inf', now_text, 'LIMIT', 0, limit - pruned)) do
  local kind, name = string.match(member, '^([^/]*)/(.*)$')
  if remove_document(kind, name) then notify(name) end
  pruned = pruned + 1
end

local function discarded_at(id)
  return cmsgpack.unpack(string.match(redis.call('GET', document_key('discard', id)), '^[^:]*:::(.*)$'))[6]
end

for _, id in ipairs(redis.call('ZRANGE', names_key('discard'), 0, limit - 1)) do
  if discarded_at(id) > now - tonumber(ARGV[5]) then break end
  remove_document('discard', id)
end

local beats = redis.call('HGETALL', base .. '/beats')
for n = 1, #beats, 2 do
  if cmsgpack.unpack(beats[n + 1])[3] <= now - tonumber(ARGV[6]) then
    redis.call('HDEL', base .. '/beats', beats[n])
    redis.call('HDEL', base .. '/workers', beats[n])
  end
end
for _, id in ipairs(redis.call('ZRANGE', names_key('orders'), 0, -1)) do
  if redis.call('HEXISTS', base .. '/beats', id) == 0 then remove_document('orders', id) end
end
finish()
return { pruned }
