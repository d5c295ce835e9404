-- What every script shares. KEYS[1] is the partition, ARGV[1] the time in ms for tests, '' for the server's.
local base = KEYS[1]
local bells, counts, erased = {}, {}, {}

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

-- Ready tasks stand in lanes, one for each type and priority that waits in a queue, in the order in which they became ready.
-- What a level of priority is worth is asked when the first of several lanes is looked for, so it can change at any time.
local function lane_of(type, priority) return priority == 0 and type or type .. '/' .. priority end
local function ready_key(queue, lane) return base .. '/ready/' .. queue .. '/' .. lane end
local function lanes_key(queue) return base .. '/lanes/' .. queue end

-- Counts, rings and tasks that become ready are gathered and done once a batch, not once a task.
local becoming_ready = {}

local function flush_ready()
  for queue, lanes in pairs(becoming_ready) do
    for lane, members in pairs(lanes) do
      redis.call('ZADD', ready_key(queue, lane), unpack(members))
      redis.call('SADD', lanes_key(queue), lane)
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

-- For a repeat that finds its work done and would write nothing: since Redis 7.2, WAIT waits only for what its own connection
-- wrote, so that the repeat of a call that too few replicas had confirmed would be called safe at once.
local function touch() redis.call('HSET', base .. '/server', 'touched', now_text) end

local function finish()
  flush_ready()
  if #erased > 0 then
    redis.call('ZREM', base .. '/all', unpack(erased))
    redis.call('ZREM', base .. '/deadlines', unpack(erased))
  end
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
  local lanes, lane = becoming_ready[queue] or {}, lane_of(type, priority)
  local members = lanes[lane] or {}
  members[#members + 1] = text(ready_at)
  members[#members + 1] = id
  lanes[lane] = members
  becoming_ready[queue] = lanes
end

local function forget_if_empty(queue, lane)
  if redis.call('EXISTS', ready_key(queue, lane)) == 0 then redis.call('SREM', lanes_key(queue), lane) end
end

local function leave_ready(id, queue, type, priority)
  flush_ready()
  local lane = lane_of(type, priority)
  redis.call('ZREM', ready_key(queue, lane), id)
  forget_if_empty(queue, lane)
end

local function make_due(id, due_at)
  redis.call('ZADD', base .. '/due', text(due_at), id)
  if redis.call('ZRANGE', base .. '/due', 0, 0)[1] == id then ring({upkeep_bell}) end
end

-- Takes a task out of where its state has it.
local function leave(id, state, queue, type, priority, token)
  if state == {ready} then leave_ready(id, queue, type, priority)
  elseif state == {claimed} then
    redis.call('ZREM', base .. '/claims', id)
    redis.call('ZREM', claim_key(token), id)
  elseif state == {scheduled} or state == {retry_pending} then redis.call('ZREM', base .. '/due', id)
  elseif state ~= {blocked} then redis.call('ZREM', base .. '/done/' .. state, id) end
  count(queue, state, -1)
end

-- Everything of a finished task.
local function erase(id, state, queue, request)
  leave(id, state, queue)
  if request then redis.call('HDEL', base .. '/req/' .. queue, request) end
  erased[#erased + 1] = id
  redis.call('DEL', task_key(id), history_key(id))
end
