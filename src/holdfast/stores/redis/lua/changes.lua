-- Executes changes, as lifecycle.step says; included by apply and reserve.
-- A change is {event, id, token, lapsed_only, epoch, delay_ms, outcome, error_type, error, reason, has_result,
-- priority}; results follow in ARGV, in order.
-- A verdict is {applied, repeated, reason, state}.
local MOVES, SETTLES, RUNS_AGAIN, SPARES, FINAL =
  {moves}, {settlements}, {runs_again}, {spares_attempt}, {final_states}

local function was_settled(id, task, token, event)
  if task.state == {succeeded} and task.token == token then return event == 'ack' end
  for _, entry in ipairs(redis.call('LRANGE', history_key(id), 0, -1)) do
    local claim = cmsgpack.unpack(entry)
    if claim[3] == token then return claim[5] == event end
  end
  return false
end

local function is_allowed(change, task)
  return MOVES[change.event][task.state] and (change.event ~= 'expire' or task.deliveries == 0)
end

local function refusal(change, task)
  if change.epoch and change.epoch ~= epoch() then return {0, 0, 'stale_epoch', task.state or ''} end
  if not task.state then return {0, 0, 'unknown', ''} end
  if SETTLES[change.event] then
    if task.state ~= {claimed} or task.token ~= change.token then
      if change.token and was_settled(change.id, task, change.token, change.event) then return {1, 1, '', task.state} end
      return {0, 0, 'stale_claim', task.state}
    end
    if change.lapsed_only and tonumber(redis.call('ZSCORE', base .. '/claims', change.id)) > now then return {0, 0, 'not_lapsed', task.state} end
  elseif not is_allowed(change, task) then
    if change.event == 'cancel' and task.state == {cancelled} then return {1, 1, '', task.state} end
    return {0, 0, 'wrong_state', task.state}
  end
end

local function record_attempt(change, task)
  local h = redis.call('HMGET', task_key(change.id), 'w', 'l')
  redis.call('RPUSH', history_key(change.id), cmsgpack.pack({
    task.deliveries, task.attempt, change.token, h[1], change.event, change.outcome, tonumber(h[2]), now,
    change.error_type or '', change.error or ''}))
end

local function record_discard(change, task)
  local last = redis.call('LINDEX', history_key(change.id), -1)
  local error = last and cmsgpack.unpack(last)[10] or ''
  redis.call('LPUSH', base .. '/discards', cmsgpack.pack({
    change.id, task.type, task.queue, redis.call('HGET', task_key(change.id), 'b'), change.reason or '', now, error}))
end

-- Where a task that leaves its state goes; run_at is when it is due or became ready.
local function enter(change, task, to, run_at)
  if to == {ready} then make_ready(change.id, task.queue, task.type, task.priority, run_at)
  elseif to == {scheduled} or to == {retry_pending} then make_due(change.id, run_at)
  elseif FINAL[to] then redis.call('ZADD', base .. '/done/' .. to, now_text, change.id) end
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
  redis.call('HDEL', key, 't', 'w', 'l', 'z', 'e', 'f')
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
local function ack(id, token, queue, cancel, result)
  if result then
    redis.call('HSET', task_key(id), 's', {succeeded}, 'f', now_text, 'u', result)
  else
    redis.call('HSET', task_key(id), 's', {succeeded}, 'f', now_text)
  end
  if cancel then redis.call('HDEL', task_key(id), 'e', 'z') end
  acked[#acked + 1] = id
  done[#done + 1] = now_text
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

local function standing(id)
  local f = redis.call('HMGET', task_key(id), 's', 't', 'q', 'y', 'p', 'r', 'a', 'd', 'z', 'e')
  return {state = f[1], token = f[2], queue = f[3], type = f[4], priority = tonumber(f[5] or 0), run_at = tonumber(f[6] or 0),
          attempt = tonumber(f[7] or 0), deliveries = tonumber(f[8] or 0), cancel = f[9] ~= false, reason = f[10] or nil}
end

local function apply_one(c, result)
  if c[1] == 'ack' then
    local f = redis.call('HMGET', task_key(c[2]), 's', 't', 'q', 'z')
    if f[1] == {claimed} and f[2] == c[3] then return ack(c[2], c[3], f[3], f[4], result) end
  end
  local change = {event = c[1], id = c[2], token = c[3], lapsed_only = c[4], epoch = c[5], delay = c[6], outcome = c[7],
                  error_type = c[8], error = c[9], reason = c[10], priority = c[12]}
  local task = standing(change.id)
  return refusal(change, task) or execute(change, task)
end

-- Executes all changes, in order; their results begin at ARGV[first].
local function apply_all(packed, first)
  local verdicts, next_result = {}, first
  for n, c in ipairs(cmsgpack.unpack(packed)) do
    local result
    if c[11] then
      result = ARGV[next_result]
      next_result = next_result + 1
    end
    verdicts[n] = apply_one(c, result)
  end
  flush_acks()
  return verdicts
end
