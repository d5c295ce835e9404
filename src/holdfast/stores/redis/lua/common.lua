-- What every script shares. KEYS[1] is the partition, ARGV[1] the time in ms for tests, '' for the server's.
local base = KEYS[1]

local function now_ms()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local now = now_ms()

-- Large numbers as text: Lua's own conversion keeps 14 digits only, and Redis' is slow.
local function text(number) return string.format('%.0f', number) end
local now_text = text(now)

-- The fields of a task's hash are listed in keys.py.
local function task_key(id) return base .. '/t/' .. id end
local function history_key(id) return base .. '/h/' .. id end
-- A token ends with the claim_id: epoch.delivery.claim_id.
local function claim_key(token) return base .. '/claim/' .. string.match(token, '[^.]*$') end

-- Ready tasks are in one index for each type and priority of a queue, in the order in which they became ready. What a
-- level of priority is worth is read when the first of several indexes is looked for, so it can change at any time.
-- Made-up types cost other callers nothing: the types of one priority are in a set of their own, by their first task.
local function ready_key(queue, type, priority)
  local key = base .. '/ready/' .. queue .. '/' .. type
  return priority == 0 and key or key .. '/' .. priority
end
local function types_key(queue, priority)
  local key = base .. '/types/' .. queue
  return priority == 0 and key or key .. '/' .. priority
end
-- Priorities other than 0 that have ready tasks.
local function levels_key(queue) return base .. '/levels/' .. queue end

-- For a repeat that finds its work done and would write nothing: since Redis 7.2, WAIT waits only for what its own connection
-- wrote, so that the repeat of a call that too few replicas had confirmed would be called safe at once.
local function touch() redis.call('HSET', base .. '/server', 'touched', now_text) end

-- The version of the partition map of this partition, if it is newer than the caller's.
local function newer_map(version)
  local current = tonumber(redis.call('GET', base .. '/map') or 0)
  return current > tonumber(version) and current or nil
end

local function epoch()
  return tonumber(redis.call('HGET', base .. '/leader/' .. {maintenance}, 'epoch') or 0)
end
