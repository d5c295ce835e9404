#!lua flags=allow-oom
-- Claims whose lease has expired, and tasks that no worker started in time, the oldest first. After a failover or a restart no worker
-- could renew for a while: a claim that has expired then gets one lease of its own, counted from the first call that notices the other
-- server. Deadlines of tasks that have begun or ended are deleted here, so that enqueue is the only one to pay for them before.
-- ARGV: now, limit
-- Reply: {1 if others may have been left out for those that got such a lease or were deleted, or claims are still to be looked through, claims, ids}, a claim being {id, token, attempt, policy, worker_id}
-- include: common
local MAY_EXPIRE = {may_expire}
local limit = tonumber(ARGV[2])
local info = redis.pcall('INFO', 'server')
local server = type(info) == 'string' and string.match(info, 'run_id:(%w+)')
local known = redis.call('HMGET', base .. '/server', 'run_id', 'since')
local since = tonumber(known[2] or 0)
if server and known[1] ~= server then
  since = known[1] and now or 0
  redis.call('HSET', base .. '/server', 'run_id', server, 'since', text(since))
end
-- Leases that were given before the clock was set back lie further ahead than they can: all claims are looked through once,
-- a part in each call, since long leases may hide short ones behind them.
local function is_too_far(id, ends) return tonumber(ends) > now + tonumber(redis.call('HGET', task_key(id), 'x') or {default_lease_ms}) end
local seen, last = redis.call('HMGET', base .. '/server', 'seen', 'look_through'), redis.call('ZRANGE', base .. '/claims', -1, -1, 'WITHSCORES')
local place = seen[2] or (tonumber(seen[1] or 0) > now or last[1] and is_too_far(last[1], last[2])) and '0'
redis.call('HSET', base .. '/server', 'seen', now_text)
if place then
  local found = redis.call('ZSCAN', base .. '/claims', place, 'COUNT', {claims_looked_through})
  for n = 1, #found[2], 2 do
    local id = found[2][n]
    if is_too_far(id, found[2][n + 1]) then
      redis.call('ZADD', base .. '/claims', text(now + tonumber(redis.call('HGET', task_key(id), 'x') or {default_lease_ms})), id)
    end
  end
  place = found[1] ~= '0' and found[1]
  if place then redis.call('HSET', base .. '/server', 'look_through', place) else redis.call('HDEL', base .. '/server', 'look_through') end
end

local claims, spared = {}, 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', base .. '/claims', '-inf', now_text, 'LIMIT', 0, limit)) do
  local f = redis.call('HMGET', task_key(id), 't', 'a', 'o', 'w', 'x')
  local grace_ends = since + tonumber(f[5] or {default_lease_ms})
  if since > 0 and grace_ends > now then
    redis.call('ZADD', base .. '/claims', text(grace_ends), id)
    spared = spared + 1
  else
    claims[#claims + 1] = {id, f[1], tonumber(f[2]), f[3] or '', f[4]}
  end
end

local unstarted, past = {}, {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', base .. '/deadlines', '-inf', now_text, 'LIMIT', 0, limit)) do
  local f = redis.call('HMGET', task_key(id), 's', 'd')
  if f[1] and MAY_EXPIRE[f[1]] and f[2] == '0' then unstarted[#unstarted + 1] = id else past[#past + 1] = id end
end
if #past > 0 then redis.call('ZREM', base .. '/deadlines', unpack(past)) end

local more = place or (spared > 0 and spared + #claims >= limit) or (#past > 0 and #past + #unstarted >= limit)
return {more and 1 or 0, claims, unstarted}
