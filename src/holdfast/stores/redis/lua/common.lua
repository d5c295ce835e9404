-- What every script shares. KEYS[1] is the partition, ARGV[1] the time in ms for tests, '' for the server's.
local base = KEYS[1]
local bells, counts = {}, {}

local function now_ms()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local now = now_ms()

-- Large numbers as text: Lua's own conversion keeps 14 digits only, and Redis' is slow.
local function text(number) return string.format('%.0f', number) end
local now_text = text(now)

local function task_key(id) return base .. '/t/' .. id end
local function history_key(id) return base .. '/h/' .. id end
-- A token ends with the claim_id: epoch.delivery.claim_id.
local function claim_key(token) return base .. '/claim/' .. string.match(token, '[^.]*$') end
local function ready_key(queue, type) return base .. '/ready/' .. queue .. '/' .. type end

-- Counts, rings and tasks that become ready are gathered and done once a batch, not once a task.
local becoming_ready = {}

local function flush_ready()
  for queue, types in pairs(becoming_ready) do
    for type, members in pairs(types) do
      redis.call('ZADD', ready_key(queue, type), unpack(members))
      redis.call('SADD', base .. '/types/' .. queue, type)
    end
    bells[queue] = true
  end
  becoming_ready = {}
end

local function count(queue, state, by)
  local field = queue .. '/' .. state
  counts[field] = (counts[field] or 0) + by
end

local function ring(name) bells[name] = true end

local function finish()
  flush_ready()
  for field, by in pairs(counts) do
    if by ~= 0 and redis.call('HINCRBY', base .. '/n', field, by) == 0 then redis.call('HDEL', base .. '/n', field) end
  end
  for name in pairs(bells) do
    local bell = base .. '/bell/' .. name
    if redis.call('LLEN', bell) == 0 then redis.call('RPUSH', bell, '!') end
  end
end

-- The version of the partition map that this partition keeps, if it is newer than the caller's.
local function newer_map(version)
  local current = tonumber(redis.call('HGET', base .. '/map', 'version') or 0)
  return current > tonumber(version) and current or nil
end

local function epoch()
  return tonumber(redis.call('HGET', base .. '/duty/' .. {upkeep_duty}, 'epoch') or 0)
end

local function make_ready(id, queue, type, priority, ready_at)
  local types = becoming_ready[queue] or {}
  local members = types[type] or {}
  members[#members + 1] = text(ready_at - priority * {step_ms})
  members[#members + 1] = id
  types[type] = members
  becoming_ready[queue] = types
end

local function leave_ready(id, queue, type)
  flush_ready()
  local key = ready_key(queue, type)
  redis.call('ZREM', key, id)
  if redis.call('EXISTS', key) == 0 then redis.call('SREM', base .. '/types/' .. queue, type) end
end

local function make_due(id, due_at)
  redis.call('ZADD', base .. '/due', text(due_at), id)
  if redis.call('ZRANGE', base .. '/due', 0, 0)[1] == id then ring({upkeep_bell}) end
end

-- Everything of a task that is not in its hash.
local function leave(id, state, queue, type, token)
  if state == {ready} then leave_ready(id, queue, type)
  elseif state == {claimed} then
    redis.call('ZREM', base .. '/claims', id)
    redis.call('ZREM', claim_key(token), id)
  elseif state == {scheduled} or state == {retry_pending} then redis.call('ZREM', base .. '/due', id)
  elseif state ~= {blocked} then redis.call('ZREM', base .. '/done/' .. state, id) end
  count(queue, state, -1)
end

local function erase(id, state, queue, type, request)
  leave(id, state, queue, type)
  if request then redis.call('HDEL', base .. '/req/' .. queue, request) end
  redis.call('ZREM', base .. '/all', id)
  redis.call('DEL', task_key(id), history_key(id))
end
