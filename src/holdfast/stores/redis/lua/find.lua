#!lua flags=no-writes
-- One stretch of a search, newest first.
-- ARGV: now, limit, before (a number of arrival or ''), query (msgpack: [states or nil, queue, type, worker_id, error_type])
-- Reply: {where to go on or '', how many were looked at, {id, number of arrival}…}
-- include: common
local limit, before = tonumber(ARGV[2]), ARGV[3]
local states, queue, type, worker_id, error_type = unpack(cmsgpack.unpack(ARGV[4]), 1, 5)
-- How many tasks are looked at in one call, and how many claims are sorted.
local STRETCH, FEW = {find_tasks}, 1000
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

local found, more = {}, false
-- The next tasks of a set that is ordered by arrival.
local function add_stretch(key)
  local from = before == '' and '+inf' or '(' .. before
  local stretch = redis.call('ZRANGE', key, from, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, STRETCH, 'WITHSCORES')
  for n = 1, #stretch, 2 do found[#found + 1] = {stretch[n], tonumber(stretch[n + 1])} end
  more = more or #stretch == 2 * STRETCH
end

local function add_claims()
  local ids = redis.call('ZRANGE', base .. '/claims', 0, -1)
  if #ids == 0 then return end
  for n, number in ipairs(redis.call('ZMSCORE', base .. '/all', unpack(ids))) do
    number = tonumber(number or 0)
    if before == '' or number < tonumber(before) then found[#found + 1] = {ids[n], number} end
  end
end

-- States whose tasks stand together: to walk past everything else would take long.
local function stand_together()
  if not states then return false end
  for _, state in ipairs(states) do
    local together = state == {failed} or state == {dead_lettered} or state == {cancelled}
      or (state == {claimed} and redis.call('ZCARD', base .. '/claims') <= FEW)
    if not together then return false end
  end
  return true
end

if stand_together() then
  for _, state in ipairs(states) do
    if state == {claimed} then add_claims() else add_stretch(base .. '/arrived/' .. state) end
  end
  table.sort(found, function(a, b) return a[2] > b[2] end)
else
  add_stretch(base .. '/all')
end

local reply, looked = {'', 0}, math.min(#found, STRETCH)
for n = 1, looked do
  reply[2] = n
  if fits(found[n][1]) then reply[#reply + 1] = {found[n][1], text(found[n][2])} end
  if #reply - 2 >= limit then break end
end
if reply[2] > 0 and (reply[2] < #found or more) then reply[1] = text(found[reply[2]][2]) end
return reply
