-- Claims the first tasks of a queue, until the next one does not fit into the answer; included by reserve.
local leases, places, held_before = {}, {}, redis.call('ZCARD', claim_key(claim_id))
local place, bytes, cut = held_before, 0, 0
-- False if it does not fit.
local function claim(id, queue, type)
  local f = redis.call('HMGET', task_key(id), 'b', 'h', 'p', 'o', 'a', 'd', 'c', 'r')
  bytes = bytes + #f[1]
  if bytes > max_bytes and place > 0 then
    cut = 1
    return false
  end
  local attempt, deliveries = tonumber(f[5]) + 1, tonumber(f[6]) + 1
  local token = current_epoch .. '.' .. deliveries .. '.' .. claim_id
  redis.call('HSET', task_key(id), 's', {claimed}, 'a', attempt, 'd', deliveries, 't', token, 'w', worker_id,
             'l', now_text)
  if lease ~= {default_lease_ms} then redis.call('HSET', task_key(id), 'x', text(lease)) end
  leases[#leases + 1] = lease_text
  leases[#leases + 1] = id
  place = place + 1
  places[#places + 1] = place
  places[#places + 1] = id
  return {id, token, type, queue, f[1], f[2] or '', tonumber(f[3]), f[4] or '', attempt, f[7], now, f[8]}
end

-- Takes tasks out of one index; what did not fit goes back to its place.
local function take_from_one(queue, index, limit, tasks)
  local key = ready_key(queue, index.type, index.priority)
  local popped = redis.call('ZPOPMIN', key, limit)
  for n = 1, #popped, 2 do
    local task = claim(popped[n], queue, index.type)
    if not task then
      local back = {}
      for left = n, #popped, 2 do
        back[#back + 1] = popped[left + 1]
        back[#back + 1] = popped[left]
      end
      redis.call('ZADD', key, unpack(back))
      break
    end
    tasks[#tasks + 1] = task
  end
  renew_first(queue, index.type, index.priority)
end

local function take_from_many(queue, indexes, limit, tasks)
  for _, entry in ipairs(merged(queue, indexes, limit, step_of(queue))) do
    local id, index = entry[1], entry[2]
    local task = claim(id, queue, index.type)
    if not task then break end
    tasks[#tasks + 1] = task
    index.taken = index.taken + 1
  end
  for _, index in ipairs(indexes) do
    -- Those taken are the first of their index.
    if index.taken > 0 then
      redis.call('ZPOPMIN', ready_key(queue, index.type, index.priority), index.taken)
      renew_first(queue, index.type, index.priority)
    end
  end
end

local function take(queue, limit, tasks)
  local indexes, before = known_indexes(queue, limit), #tasks
  if #indexes == 1 then take_from_one(queue, indexes[1], limit, tasks)
  elseif #indexes > 1 then take_from_many(queue, indexes, limit, tasks) end
  local taken = #tasks - before
  count(queue, {ready}, -taken)
  count(queue, {claimed}, taken)
  return taken
end
