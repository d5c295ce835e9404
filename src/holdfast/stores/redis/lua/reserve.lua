#!lua flags=allow-oom
-- Settles the last batch, then claims ready tasks, lowest rank first.
-- ARGV: now, version of the map,
--       request (msgpack: claim_id, worker_id, shares [[queue, limit]…], max_tasks, lease_ms, types or nil, name of a fresh call or nil),
--       changes (msgpack), results…
-- Reply: {'stale_map', version} if the map is newer and nothing was done; else {verdicts, tasks}; a task is {id, token, type, queue, payload, headers, priority, policy, attempt, created_at, claimed_at, ready_at}
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
  local f = redis.call('HMGET', task_key(id), 't', 'y', 'q', 'b', 'h', 'p', 'o', 'a', 'c', 'l', 'r')
  return {id, f[1], f[2], f[3], f[4], f[5] or '', tonumber(f[6]), f[7] or '', tonumber(f[8]), f[9], tonumber(f[10]), f[11]}
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

-- The lanes of a queue that this worker can serve.
local function known_lanes(queue)
  local lanes = {}
  for _, name in ipairs(redis.call('SMEMBERS', lanes_key(queue))) do
    local type, priority = string.match(name, '^([^/]*)/?(.*)$')
    if not known_types or known_types[type] then
      lanes[#lanes + 1] = {name = name, type = type, priority = tonumber(priority) or 0, taken = 0}
    end
  end
  return lanes
end

local function is_before(a, b)
  if a.rank ~= b.rank then return a.rank < b.rank end
  return a.id < b.id
end

-- Goes to the next task of a lane, each time looking at twice as many; false at its end.
local function advance(lane, queue, step)
  if not lane.found or lane.at > #lane.found then
    if lane.found then
      if #lane.found < lane.stretch * 2 then return false end
      lane.stretch = lane.stretch * 2
    end
    lane.found = redis.call('ZRANGE', ready_key(queue, lane.name), lane.taken, lane.taken + lane.stretch - 1, 'WITHSCORES')
    lane.at = 1
  end
  lane.id = lane.found[lane.at]
  if not lane.id then return false end
  lane.rank = lane.found[lane.at + 1] - lane.priority * step
  lane.at = lane.at + 2
  return true
end

-- The first `limit` tasks of several lanes, by rank, then by id; each lane knows how many of them are its own.
local function merged(queue, lanes, limit)
  local step = tonumber(redis.call('HGET', base .. '/steps', queue) or {step_ms})
  local line, tasks = {}, {}
  for _, lane in ipairs(lanes) do
    lane.stretch = math.ceil(limit / #lanes)
    if advance(lane, queue, step) then line[#line + 1] = lane end
  end
  table.sort(line, is_before)
  while #tasks < limit and line[1] do
    local first, place = line[1], 1
    tasks[#tasks + 1] = {first.id, first.type}
    first.taken = first.taken + 1
    if advance(first, queue, step) then
      while line[place + 1] and is_before(line[place + 1], first) do
        line[place] = line[place + 1]
        place = place + 1
      end
      line[place] = first
    else
      table.remove(line, 1)
    end
  end
  return tasks
end

-- Takes the first `limit` tasks out of a queue.
local function pop(queue, lanes, limit)
  if #lanes == 1 then
    local popped, tasks = redis.call('ZPOPMIN', ready_key(queue, lanes[1].name), limit), {}
    for n = 1, #popped, 2 do tasks[#tasks + 1] = {popped[n], lanes[1].type} end
    forget_if_empty(queue, lanes[1].name)
    return tasks
  end
  local tasks = merged(queue, lanes, limit)
  for _, lane in ipairs(lanes) do
    -- Those taken are the first of their lane.
    if lane.taken > 0 then
      redis.call('ZPOPMIN', ready_key(queue, lane.name), lane.taken)
      forget_if_empty(queue, lane.name)
    end
  end
  return tasks
end

local leases, places, held_before = {}, {}, redis.call('ZCARD', claim_key(claim_id))
local place = held_before
local function claim(id, queue, type)
  local f = redis.call('HMGET', task_key(id), 'b', 'h', 'p', 'o', 'a', 'd', 'c', 'r')
  local attempt, deliveries = tonumber(f[5]) + 1, tonumber(f[6]) + 1
  local token = current_epoch .. '.' .. deliveries .. '.' .. claim_id
  redis.call('HSET', task_key(id), 's', {claimed}, 'a', attempt, 'd', deliveries, 't', token, 'w', worker_id,
             'l', now_text)
  leases[#leases + 1] = lease_text
  leases[#leases + 1] = id
  place = place + 1
  places[#places + 1] = place
  places[#places + 1] = id
  return {id, token, type, queue, f[1], f[2] or '', tonumber(f[3]), f[4] or '', attempt, f[7], now, f[8]}
end

local function take(queue, limit, tasks)
  local lanes = known_lanes(queue)
  if #lanes == 0 then return 0 end
  local ids = pop(queue, lanes, limit)
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
      if redis.call('EXISTS', lanes_key(queue)) == 1 then ring(queue) end
    end
  end
  return tasks
end

local verdicts = apply_all(ARGV[4], 5)
flush_ready()
local tasks = {}
if max_tasks > 0 and #shares > 0 then
  tasks = not is_fresh(request[7]) and held() or nil
  if tasks then
    touch()
  else
    tasks = claim_all()
    -- Together with what it held before, which the caller knows of.
    if request[7] and held_before > 0 then tasks = held() or {} end
  end
end
finish()
return {verdicts, tasks}
