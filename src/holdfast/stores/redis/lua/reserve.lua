#!lua flags=allow-oom
-- Settles the last batch, then claims ready tasks, lowest rank first, until the next one does not fit into the answer.
-- ARGV: now, version of the map,
--       request (msgpack: claim_id, worker_id, shares [[queue, limit]…], max_tasks, lease_ms, types or nil, name of a fresh call or nil, max_bytes),
--       changes (msgpack), results…
-- Reply: {'stale_map', version} if the map is newer and nothing was done; else {verdicts, tasks, 1 if one did not fit}; a task is {id, token, type, queue, payload, headers, priority, policy, attempt, created_at, claimed_at, ready_at}
-- include: common
-- include: indexes
-- include: changes
local newer = newer_map(ARGV[2])
if newer then return {'stale_map', newer} end
local request = cmsgpack.unpack(ARGV[3])
local claim_id, worker_id, shares, max_tasks, lease = unpack(request, 1, 5)
local known_types, max_bytes = request[6], request[8]
local is_known = {}
for _, type in ipairs(known_types or {}) do is_known[type] = true end
local current_epoch = epoch()
local lease_text = text(now + lease)
-- include: ranking
-- include: claiming

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

-- What a claim_id holds is one answer, however many calls it took.
local function bytes_held()
  local sum = 0
  for _, id in ipairs(redis.call('ZRANGE', claim_key(claim_id), 0, -1)) do
    sum = sum + redis.call('HSTRLEN', task_key(id), 'b')
  end
  return sum
end

local function claim_all()
  local tasks, full, empty = {}, {}, {}
  if held_before > 0 then bytes = bytes_held() end
  for round = 1, 2 do
    for _, share in ipairs(shares) do
      local queue, left = share[1], max_tasks - #tasks
      local limit = round == 1 and math.min(share[2], left) or left
      if limit > 0 and cut == 0 and not empty[queue] then
        local is_paused = redis.call('SISMEMBER', base .. '/paused', queue) == 1
        if not is_paused and (take(queue, limit, tasks) == limit or cut == 1) then full[queue] = true
        else empty[queue] = true end
      end
    end
  end
  if #tasks > 0 then
    redis.call('ZADD', base .. '/claims', unpack(leases))
    redis.call('ZADD', claim_key(claim_id), unpack(places))
  end
  -- A worker that gets all it asked for, or all that fits, may leave tasks behind: then the next one is notified.
  if #tasks >= max_tasks or cut == 1 then
    for queue in pairs(full) do
      if redis.call('EXISTS', types_key(queue, 0), levels_key(queue)) > 0 then notify(queue) end
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
return {verdicts, tasks, cut}
