#!lua flags=no-writes
-- One stretch of a search, newest first.
-- ARGV: now, limit, before (a number of arrival or ''), query (msgpack: [states or nil, queue, type, worker_id, error_type])
-- Reply: {where to go on or '', {id, number of arrival}…}
-- include: common
local limit, before = tonumber(ARGV[2]), ARGV[3]
local states, queue, type, worker_id, error_type = unpack(cmsgpack.unpack(ARGV[4]), 1, 5)
-- How many tasks are looked at in one call, and how many of a rare state are sorted.
local STRETCH, FEW = 2000, 5000
local wanted
if states then
  wanted = {}
  for _, state in ipairs(states) do wanted[state] = true end
end

local function last_error(id)
  local last = redis.call('LINDEX', history_key(id), -1)
  return last and cmsgpack.unpack(last)[9] or ''
end

local function fits(id)
  local f = redis.call('HMGET', task_key(id), 's', 'q', 'y', 'w')
  return (not wanted or wanted[f[1]]) and (not queue or f[2] == queue) and (not type or f[3] == type)
    and (not worker_id or (f[4] == worker_id and f[1] == {claimed})) and (not error_type or last_error(id) == error_type)
end

-- States whose members stand together and are few: sorting them beats walking past everything else.
local function few_of(states)
  local ids = {}
  for _, state in ipairs(states) do
    local key
    if state == {claimed} then key = base .. '/claims'
    elseif state == {failed} or state == {dead_lettered} or state == {cancelled} then key = base .. '/done/' .. state
    else return nil end
    if #ids + redis.call('ZCARD', key) > FEW then return nil end
    for _, id in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      ids[#ids + 1] = {id, tonumber(redis.call('ZSCORE', base .. '/all', id))}
    end
  end
  table.sort(ids, function(a, b) return a[2] > b[2] end)
  return ids
end

local reply = {''}
local function consider(id, number)
  if fits(id) then reply[#reply + 1] = {id, text(number)} end
  return #reply > limit
end

local few = states and few_of(states)
if few then
  for n, entry in ipairs(few) do
    if (before == '' or entry[2] < tonumber(before)) and consider(entry[1], entry[2]) then
      if n < #few then reply[1] = text(entry[2]) end
      break
    end
  end
  return reply
end
local from = before == '' and '+inf' or '(' .. before
local stretch = redis.call('ZRANGE', base .. '/all', from, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, STRETCH, 'WITHSCORES')
for n = 1, #stretch, 2 do
  if consider(stretch[n], tonumber(stretch[n + 1])) or n == STRETCH * 2 - 1 then
    reply[1] = text(tonumber(stretch[n + 1]))
    break
  end
end
return reply
