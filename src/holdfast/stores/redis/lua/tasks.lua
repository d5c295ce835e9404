-- Records tasks, each at most once; included by enqueue, enqueue_part and put_tasks.
-- A task is {id, type, queue, priority, delay_ms, run_at_ms, request_id, headers, policy, expires_ms, result_ttl_ms,
-- dead_letter_ttl_ms}, the last two nil for the default; payloads follow in ARGV, in order.
local numbers = {}
local function number_all()
  if #numbers == 0 then
    touch()
    return redis.call('GET', base .. '/seq') or '0'
  end
  local last = redis.call('INCRBY', base .. '/seq', #numbers)
  local members = {}
  for n, id in ipairs(numbers) do
    members[#members + 1] = text(last - #numbers + n)
    members[#members + 1] = id
  end
  redis.call('ZADD', base .. '/all', unpack(members))
  return text(last)
end

local function record(id, type, queue, priority, delay, run_at, request, headers, policy, expires, result_ttl, dead_letter_ttl, payload)
  local due_at = run_at or (now + delay)
  local state = {ready}
  if due_at > now then state = {scheduled} else due_at = now end
  local fields = {'s', state, 'q', queue, 'y', type, 'p', priority, 'r', text(due_at), 'c', now_text, 'a', 0, 'd', 0,
                  'b', payload}
  local function also(name, value)
    if value then fields[#fields + 1] = name; fields[#fields + 1] = value end
  end
  also('i', request)
  also('h', headers)
  also('o', policy)
  also('k', result_ttl)
  also('m', dead_letter_ttl)
  redis.call('HSET', task_key(id), unpack(fields))
  numbers[#numbers + 1] = id
  if request then redis.call('HSET', base .. '/req/' .. queue, request, id) end
  if expires then redis.call('ZADD', base .. '/deadlines', text(now + expires), id) end
  if state == {ready} then make_ready(id, queue, type, priority, due_at) else make_due(id, due_at) end
  count(queue, state, 1)
end

-- The last number of arrival, then one each: {id, 1} recorded; {id, 0} known; {id, 0, 'task_id' or 'request_id', type}
-- known as something else; {id, 0, 'queue', ''} known in another queue, of which nothing more is said. The payloads begin at ARGV[first].
local function record_all(packed, first)
  local replies = {}
  for n, task in ipairs(cmsgpack.unpack(packed)) do
    local id, type, queue, priority, delay, run_at, request, headers, policy, expires, result_ttl, dead_letter_ttl = unpack(task, 1, 12)
    local payload = ARGV[first + n - 1]
    local known, kind = id, 'task_id'
    local found = redis.call('HMGET', task_key(id), 'y', 'b', 'q')
    if not found[1] and request then
      known, kind = redis.call('HGET', base .. '/req/' .. queue, request) or id, 'request_id'
      found = redis.call('HMGET', task_key(known), 'y', 'b', 'q')
    end
    if not found[1] then
      record(id, type, queue, priority, delay, run_at, request, headers, policy, expires, result_ttl, dead_letter_ttl,
             payload)
      replies[n + 1] = {id, 1}
    elseif found[3] ~= queue then
      replies[n + 1] = {known, 0, 'queue', ''}
    elseif found[1] == type and found[2] == payload then
      replies[n + 1] = {known, 0}
    else
      replies[n + 1] = {known, 0, kind, found[1]}
    end
  end
  replies[1] = number_all()
  return replies
end
