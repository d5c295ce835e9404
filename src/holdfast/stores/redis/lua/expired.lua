#!lua flags=allow-oom
-- Claims whose lease has expired, and tasks that no worker started in time, the oldest first. After a failover or a restart no worker
-- could renew for a while: a claim that has expired then gets one lease of its own, counted from the first call that notices the other
-- server. Deadlines of tasks that have begun or ended are deleted here, so that enqueue is the only one to pay for them before.
-- ARGV: now, limit
-- Reply: {1 if others may have been left out for those that got such a lease or were deleted, claims, ids}, a claim being {id, token, attempt, policy, worker_id}
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
-- Leases that were given before the clock was set back lie further ahead than they can, so they are the last ones.
local last = redis.call('ZRANGE', base .. '/claims', -{leases_ahead}, -1, 'WITHSCORES')
for n = 1, #last, 2 do
  local longest = now + tonumber(redis.call('HGET', task_key(last[n]), 'x') or {default_lease_ms})
  if tonumber(last[n + 1]) > longest then redis.call('ZADD', base .. '/claims', text(longest), last[n]) end
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

local more = (spared > 0 and spared + #claims >= limit) or (#past > 0 and #past + #unstarted >= limit)
return {more and 1 or 0, claims, unstarted}
