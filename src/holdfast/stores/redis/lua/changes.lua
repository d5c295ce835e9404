-- Executes changes, as lifecycle.step says; included by apply and reserve.
-- A change is {event, id, token, expired_only, epoch, delay_ms, outcome, error_type, error, reason, has_result,
-- priority}; results follow in ARGV, in order.
-- A verdict is {applied, repeated, reason, state}.
-- include: effects
local function was_settled(id, task, token, event)
  if task.state == {succeeded} and task.token == token then return event == 'ack' end
  -- A success is the last entry of the history, and stands in the task.
  local oldest = task.state == {succeeded} and 1 - {history_limit} or -{history_limit}
  for _, entry in ipairs(redis.call('LRANGE', history_key(id), oldest, -1)) do
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
    if change.expired_only and tonumber(redis.call('ZSCORE', base .. '/claims', change.id)) > now then return {0, 0, 'not_expired', task.state} end
  elseif not is_allowed(change, task) then
    if change.event == 'cancel' and task.state == {cancelled} then return {1, 1, '', task.state} end
    return {0, 0, 'wrong_state', task.state}
  end
end

local function standing(id)
  local f = redis.call('HMGET', task_key(id), 's', 't', 'q', 'y', 'p', 'r', 'a', 'd', 'z', 'e', 'k', 'm')
  return {state = f[1], token = f[2], queue = f[3], type = f[4], priority = tonumber(f[5] or 0), run_at = tonumber(f[6] or 0),
          attempt = tonumber(f[7] or 0), deliveries = tonumber(f[8] or 0), cancel = f[9] ~= false, reason = f[10] or nil,
          result_ttl = f[11], dead_letter_ttl = f[12]}
end

local function apply_one(c, result)
  if c[1] == 'ack' then
    local f = redis.call('HMGET', task_key(c[2]), 's', 't', 'q', 'z', 'k')
    if f[1] == {claimed} and f[2] == c[3] then return ack(c[2], c[3], f[3], f[4], f[5], result) end
  end
  local change = {event = c[1], id = c[2], token = c[3], expired_only = c[4], epoch = c[5], delay = c[6], outcome = c[7],
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
