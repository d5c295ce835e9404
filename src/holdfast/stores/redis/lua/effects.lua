-- What a change does to its task; included by changes.
local MOVES, SETTLES, RUNS_AGAIN, SPARES, FINAL =
  {moves}, {settlements}, {runs_again}, {spares_attempt}, {final_states}

local function record_attempt(change, task)
  local h = redis.call('HMGET', task_key(change.id), 'w', 'l')
  local length = redis.call('RPUSH', history_key(change.id), cmsgpack.pack({
    task.deliveries, task.attempt, change.token, h[1], change.event, change.outcome, tonumber(h[2]), now,
    change.error_type or '', change.error or ''}))
  if length > {history_limit} then redis.call('LTRIM', history_key(change.id), -{history_limit}, -1) end
end

-- As a document of its own kind, see document.lua; the newest come last.
local function record_discard(change, task)
  local last = redis.call('LINDEX', history_key(change.id), -1)
  local error = last and cmsgpack.unpack(last)[10] or ''
  local names, key = base .. '/names/discard', base .. '/document/discard/'
  local newest = redis.call('ZRANGE', names, -1, -1, 'WITHSCORES')[2] or 0
  redis.call('SET', key .. change.id, '1:::' .. cmsgpack.pack({
    change.id, task.type, task.queue, redis.call('HGET', task_key(change.id), 'b'), change.reason or '', now, error}))
  redis.call('ZADD', names, text(newest + 1), change.id)
  if redis.call('ZCARD', names) > {discards_limit} then redis.call('DEL', key .. redis.call('ZPOPMIN', names)[1]) end
end

-- When a task that ends now in this state is deleted.
local function kept_until(state, result_ttl, dead_letter_ttl)
  if state == {dead_lettered} then return text(now + tonumber(dead_letter_ttl or {dead_letter_ttl_ms})) end
  return text(now + tonumber(result_ttl or {result_ttl_ms}))
end

-- Where a task that leaves its state goes; run_at is when it is due or became ready.
local function enter(change, task, to, run_at)
  if to == {ready} then make_ready(change.id, task.queue, task.type, task.priority, run_at)
  elseif to == {scheduled} or to == {retry_pending} then make_due(change.id, run_at)
  elseif FINAL[to] then
    redis.call('ZADD', base .. '/done/' .. to, kept_until(to, task.result_ttl, task.dead_letter_ttl), change.id)
    redis.call('ZADD', base .. '/arrived/' .. to, redis.call('ZSCORE', base .. '/all', change.id) or 0, change.id)
  end
  count(task.queue, to, 1)
end

local function new_reason(change, task, to)
  if to == {cancelled} then return change.reason or task.reason end
  return FINAL[to] and change.reason or nil
end

local function move(change, task, to)
  local run_at, attempt = task.run_at, task.attempt
  if to == {retry_pending} or to == {scheduled} then run_at = now + change.delay end
  if change.event == 'replay' then run_at, attempt = now, 0 end
  if SPARES[change.event] then attempt = attempt - 1 end
  leave(change.id, task.state, task.queue, task.type, task.priority, task.token)
  enter(change, task, to, run_at)
  local key = task_key(change.id)
  redis.call('HDEL', key, 't', 'w', 'l', 'x', 'z', 'e', 'f')
  if not FINAL[to] then redis.call('HDEL', key, 'g') end -- how far a run was: the next one begins anew
  redis.call('HSET', key, 's', to, 'r', text(run_at), 'a', attempt)
  if FINAL[to] then redis.call('HSET', key, 'f', now_text) end
  local reason = new_reason(change, task, to)
  if reason then redis.call('HSET', key, 'e', reason) end
end

local function prioritize(change, task)
  redis.call('HSET', task_key(change.id), 'p', change.priority)
  if task.state == {ready} then
    leave_ready(change.id, task.queue, task.type, task.priority)
    make_ready(change.id, task.queue, task.type, change.priority, task.run_at)
  end
end

-- The hot path: two calls a task, the rest once a batch. The claim stays in the task: it is the last line of its history.
local acked, done, by_claim, by_queue = {}, {}, {}, {}
local default_end = kept_until({succeeded})
local function ack(id, token, queue, cancel, result_ttl, result)
  if result then
    redis.call('HSET', task_key(id), 's', {succeeded}, 'f', now_text, 'u', result)
  else
    redis.call('HSET', task_key(id), 's', {succeeded}, 'f', now_text)
  end
  if cancel then redis.call('HDEL', task_key(id), 'e', 'z') end
  acked[#acked + 1] = id
  done[#done + 1] = result_ttl and kept_until({succeeded}, result_ttl) or default_end
  done[#done + 1] = id
  local ids = by_claim[token] or {}
  ids[#ids + 1] = id
  by_claim[token] = ids
  by_queue[queue] = (by_queue[queue] or 0) + 1
  return {1, 0, '', {succeeded}}
end

local function flush_acks()
  if #acked == 0 then return end
  redis.call('ZREM', base .. '/claims', unpack(acked))
  redis.call('ZADD', base .. '/done/' .. {succeeded}, unpack(done))
  for token, ids in pairs(by_claim) do redis.call('ZREM', claim_key(token), unpack(ids)) end
  for queue, number in pairs(by_queue) do
    count(queue, {claimed}, -number)
    count(queue, {succeeded}, number)
  end
end

local function execute(change, task)
  local to = MOVES[change.event][task.state]
  if task.cancel and RUNS_AGAIN[change.event] then to = {cancelled} end
  if to == 'gone' then
    record_discard(change, task)
    erase(change.id, task.state, task.queue, redis.call('HGET', task_key(change.id), 'i'))
  elseif change.event == 'prioritize' then
    prioritize(change, task)
  elseif to == {claimed} then
    redis.call('HSET', task_key(change.id), 'z', 1, 'e', change.reason or '')
  else
    if SETTLES[change.event] then record_attempt(change, task) end
    move(change, task, to)
  end
  return {1, 0, '', to}
end
