-- Where tasks are by their state, how many there are, and the wake-ups of those who wait for them. Counts, wake-ups and
-- tasks that become ready are gathered and written once a batch, not once a task: by `finish`.
local wakeups, counts, erased, becoming_ready = {}, {}, {}, {}

local function count(queue, state, by)
  local field = queue .. '/' .. state
  counts[field] = (counts[field] or 0) + by
end

local function notify(name) wakeups[name] = true end

local function flush_ready()
  for key, new in pairs(becoming_ready) do
    redis.call('ZADD', key, unpack(new))
    local is_new = redis.call('ZADD', types_key(new.queue, new.priority), 'LT', text(new.first), new.type)
    if is_new == 1 and new.priority ~= 0 then redis.call('SADD', levels_key(new.queue), new.priority) end
    notify(new.queue)
  end
  becoming_ready = {}
end

local function finish()
  flush_ready()
  if #erased > 0 then
    redis.call('ZREM', base .. '/all', unpack(erased))
    redis.call('ZREM', base .. '/deadlines', unpack(erased))
  end
  for field, by in pairs(counts) do
    if by ~= 0 and redis.call('HINCRBY', base .. '/n', field, by) == 0 then redis.call('HDEL', base .. '/n', field) end
  end
  for name in pairs(wakeups) do
    local wakeup = base .. '/wakeup/' .. name
    -- One that no worker takes expires; `promote` makes another while tasks wait.
    if redis.call('LLEN', wakeup) == 0 then
      redis.call('RPUSH', wakeup, '!')
      redis.call('PEXPIRE', wakeup, {wakeup_ms})
    end
  end
end

local function make_ready(id, queue, type, priority, ready_at)
  local key = ready_key(queue, type, priority)
  local new = becoming_ready[key]
  if not new then
    new = {queue = queue, type = type, priority = priority, first = ready_at}
    becoming_ready[key] = new
  end
  if ready_at < new.first then new.first = ready_at end
  new[#new + 1] = text(ready_at)
  new[#new + 1] = id
end

-- After tasks were taken out of an index: which one is its first now, if there is one.
local function renew_first(queue, type, priority)
  local types = types_key(queue, priority)
  local first = redis.call('ZRANGE', ready_key(queue, type, priority), 0, 0, 'WITHSCORES')[2]
  if first then
    redis.call('ZADD', types, first, type)
  else
    redis.call('ZREM', types, type)
    if priority ~= 0 and redis.call('EXISTS', types) == 0 then redis.call('SREM', levels_key(queue), priority) end
  end
end

local function leave_ready(id, queue, type, priority)
  flush_ready()
  redis.call('ZREM', ready_key(queue, type, priority), id)
  renew_first(queue, type, priority)
end

local function make_due(id, due_at)
  redis.call('ZADD', base .. '/due', text(due_at), id)
  if redis.call('ZRANGE', base .. '/due', 0, 0)[1] == id then notify({maintenance_wakeup}) end
end

-- Takes a task out of where its state has it.
local function leave(id, state, queue, type, priority, token)
  if state == {ready} then leave_ready(id, queue, type, priority)
  elseif state == {claimed} then
    redis.call('ZREM', base .. '/claims', id)
    redis.call('ZREM', claim_key(token), id)
  elseif state == {scheduled} or state == {retry_pending} then redis.call('ZREM', base .. '/due', id)
  elseif state ~= {blocked} then
    redis.call('ZREM', base .. '/done/' .. state, id)
    if state ~= {succeeded} then redis.call('ZREM', base .. '/arrived/' .. state, id) end
  end
  count(queue, state, -1)
end

-- Everything of a finished task.
local function erase(id, state, queue, request)
  leave(id, state, queue)
  if request then redis.call('HDEL', base .. '/req/' .. queue, request) end
  erased[#erased + 1] = id
  redis.call('DEL', task_key(id), history_key(id))
end
