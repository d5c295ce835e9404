-- Which ready tasks of a queue come first: tasks of several types and priorities are in several indexes, merged here; included by reserve.
-- More indexes than tasks are asked for are looked at, for those whose first tasks became ready at the same time.
local TIES = 100
-- Arguments of one command.
local MANY = 1000

local function add_index(indexes, type, priority, first)
  indexes[#indexes + 1] = {type = type, priority = priority, first = tonumber(first), seen = 0, taken = 0}
end

-- The types of one priority that this worker can serve, by their first tasks: as few lookups as there are of either kind.
local function add_indexes(indexes, queue, priority, limit)
  local key = types_key(queue, priority)
  local found = redis.call('ZRANGE', key, 0, (known_types and #known_types or limit + TIES - 1), 'WITHSCORES')
  if not known_types or #found <= 2 * #known_types then
    for n = 1, #found, 2 do
      if not known_types or is_known[found[n]] then add_index(indexes, found[n], priority, found[n + 1]) end
    end
    return
  end
  for start = 1, #known_types, MANY do
    local last = math.min(start + MANY - 1, #known_types)
    for n, first in ipairs(redis.call('ZMSCORE', key, unpack(known_types, start, last))) do
      if first then add_index(indexes, known_types[start + n - 1], priority, first) end
    end
  end
end

local function is_before(a, b)
  if a.rank ~= b.rank then return a.rank < b.rank end
  return a.id < b.id
end

local function step_of(queue) return tonumber(redis.call('HGET', base .. '/steps', queue) or {step_ms}) end

-- The indexes that the first `limit` tasks of a queue stand in.
local function known_indexes(queue, limit)
  local indexes = {}
  add_indexes(indexes, queue, 0, limit)
  for _, priority in ipairs(redis.call('SMEMBERS', levels_key(queue))) do
    add_indexes(indexes, queue, tonumber(priority), limit)
  end
  if #indexes > limit + TIES then
    local step = step_of(queue)
    for _, index in ipairs(indexes) do
      index.rank, index.id = index.first - index.priority * step, index.type
    end
    table.sort(indexes, is_before)
    for n = #indexes, limit + TIES + 1, -1 do indexes[n] = nil end
  end
  return indexes
end

-- Goes to the next task of an index, each time looking at twice as many; false at its end.
local function advance(index, queue, step)
  if not index.found or index.at > #index.found then
    if index.found then
      if #index.found < index.stretch * 2 then return false end
      index.stretch = index.stretch * 2
    end
    local key = ready_key(queue, index.type, index.priority)
    index.found = redis.call('ZRANGE', key, index.seen, index.seen + index.stretch - 1, 'WITHSCORES')
    index.at = 1
  end
  index.id = index.found[index.at]
  if not index.id then return false end
  index.rank = index.found[index.at + 1] - index.priority * step
  index.at = index.at + 2
  return true
end

-- The first `limit` tasks of several indexes, by rank, then by id.
local function merged(queue, indexes, limit, step)
  local heads, tasks = {}, {}
  for _, index in ipairs(indexes) do
    index.stretch = math.ceil(limit / #indexes)
    if advance(index, queue, step) then heads[#heads + 1] = index end
  end
  table.sort(heads, is_before)
  while #tasks < limit and heads[1] do
    local first, place = heads[1], 1
    tasks[#tasks + 1] = {first.id, first}
    first.seen = first.seen + 1
    if advance(first, queue, step) then
      while heads[place + 1] and is_before(heads[place + 1], first) do
        heads[place] = heads[place + 1]
        place = place + 1
      end
      heads[place] = first
    else
      table.remove(heads, 1)
    end
  end
  return tasks
end
