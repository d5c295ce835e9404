#!lua flags=allow-oom
-- Settles the last batch, then claims ready tasks, lowest rank first.
-- ARGV: now, version of the map,
--       request (msgpack: claim_id, worker_id, shares [[queue, limit]…], max_tasks, lease_ms, types or nil, name of a fresh call or nil),
--       changes (msgpack), results…
-- Reply: {'stale_map', version} if the map is newer and nothing was done; else {verdicts, tasks}; a task is {id, token, type, queue, payload, headers, priority, policy, attempt, created_at}
-- include: common
-- include: changes
local newer = newer_map(ARGV[2])
if newer then return {'stale_map', newer} end
local request = cmsgpack.unpack(ARGV[3])
local claim_id, worker_id, shares, max_tasks, lease = unpack(request, 1, 5)
local known_types
if request[6] then
  known_types = {}
  for _, type in ipairs(request[6]) do known_types[type] = true end
end
local current_epoch = epoch()
local lease_text = text(now + lease)
-- The grace after a failover is as long as the longest lease that is in use.
if lease > tonumber(redis.call('HGET', base .. '/server', 'lease') or 0) then
  redis.call('HSET', base .. '/server', 'lease', text(lease))
end

local function claimed(id)
  local f = redis.call('HMGET', task_key(id), 't', 'y', 'q', 'b', 'h', 'p', 'o', 'a', 'c')
  return {id, f[1], f[2], f[3], f[4], f[5] or '', tonumber(f[6]), f[7] or '', tonumber(f[8]), f[9]}
end

-- What this claim_id got before, and still holds.
local function held()
  local tasks = {}
  for n, id in ipairs(redis.call('ZRANGE', claim_key(claim_id), 0, -1)) do tasks[n] = claimed(id) end
  return #tasks > 0 and tasks or nil
end

-- A fresh call claims without looking, unless it was made before and only its reply was lost.
local function is_fresh(name)
  if not name then return false end
  local key = base .. '/fresh/' .. claim_id
  if redis.call('GET', key) == name then return false end
  redis.call('SET', key, name, 'PX', 60000)
  return true
end

local function waiting_types(queue)
  local types = redis.call('SMEMBERS', base .. '/types/' .. queue)
  if not known_types then return types end
  local known = {}
  for _, type in ipairs(types) do
    if known_types[type] then known[#known + 1] = type end
  end
  return known
end

-- Takes the first `limit` tasks of one type out of its queue.
local function pop_one_type(queue, type, limit)
  local popped, ids = redis.call('ZPOPMIN', ready_key(queue, type), limit), {}
  for n = 1, #popped, 2 do ids[#ids + 1] = {popped[n], type} end
  return ids
end

-- The same over several types: by rank, then by id.
local function pop_types(queue, types, limit)
  local candidates = {}
  for _, type in ipairs(types) do
    local found = redis.call('ZRANGE', ready_key(queue, type), 0, limit - 1, 'WITHSCORES')
    for n = 1, #found, 2 do candidates[#candidates + 1] = {found[n], type, tonumber(found[n + 1])} end
  end
  table.sort(candidates, function(a, b) if a[3] ~= b[3] then return a[3] < b[3] end return a[1] < b[1] end)
  local ids = {}
  for n = 1, math.min(limit, #candidates) do
    ids[n] = candidates[n]
    redis.call('ZREM', ready_key(queue, ids[n][2]), ids[n][1])
  end
  return ids
end

local function forget_empty(queue, types)
  for _, type in ipairs(types) do
    if redis.call('EXISTS', ready_key(queue, type)) == 0 then redis.call('SREM', base .. '/types/' .. queue, type) end
  end
end

local leases, places, place = {}, {}, redis.call('ZCARD', claim_key(claim_id))
local function claim(id, queue, type)
  local f = redis.call('HMGET', task_key(id), 'b', 'h', 'p', 'o', 'a', 'd', 'c')
  local attempt, deliveries = tonumber(f[5]) + 1, tonumber(f[6]) + 1
  local token = current_epoch .. '.' .. deliveries .. '.' .. claim_id
  redis.call('HSET', task_key(id), 's', {claimed}, 'a', attempt, 'd', deliveries, 't', token, 'w', worker_id,
             'l', now_text)
  leases[#leases + 1] = lease_text
  leases[#leases + 1] = id
  place = place + 1
  places[#places + 1] = place
  places[#places + 1] = id
  return {id, token, type, queue, f[1], f[2] or '', tonumber(f[3]), f[4] or '', attempt, f[7]}
end

local function take(queue, limit, tasks)
  local types = waiting_types(queue)
  if #types == 0 then return 0 end
  local ids = #types == 1 and pop_one_type(queue, types[1], limit) or pop_types(queue, types, limit)
  forget_empty(queue, types)
  for _, entry in ipairs(ids) do tasks[#tasks + 1] = claim(entry[1], queue, entry[2]) end
  count(queue, {ready}, -#ids)
  count(queue, {claimed}, #ids)
  return #ids
end

local function claim_all()
  local tasks, full = {}, {}
  for round = 1, 2 do
    for _, share in ipairs(shares) do
      local queue, left = share[1], max_tasks - #tasks
      local limit = round == 1 and math.min(share[2], left) or left
      if limit > 0 and redis.call('SISMEMBER', base .. '/paused', queue) == 0 then
        if take(queue, limit, tasks) == limit then full[queue] = true end
      end
    end
  end
  if #tasks > 0 then
    redis.call('ZADD', base .. '/claims', unpack(leases))
    redis.call('ZADD', claim_key(claim_id), unpack(places))
  end
  -- Whoever gets all it asked for may leave something behind: then the next worker should have a look.
  if #tasks >= max_tasks then
    for queue in pairs(full) do
      if redis.call('EXISTS', base .. '/types/' .. queue) == 1 then ring(queue) end
    end
  end
  return tasks
end

local verdicts = apply_all(ARGV[4], 5)
flush_ready()
local tasks = {}
if max_tasks > 0 and #shares > 0 then
  tasks = not is_fresh(request[7]) and held() or nil
  if not tasks then
    tasks = claim_all()
    -- Together with what it held before, which the caller knows of.
    if request[7] then tasks = held() or {} end
  end
end
finish()
return {verdicts, tasks}
