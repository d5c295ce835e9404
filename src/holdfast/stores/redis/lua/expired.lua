#!lua flags=allow-oom
-- Claims whose lease has run out, the oldest first. After a failover or a restart nobody could renew for a while:
-- then every claim gets one lease of grace, counted from the first call that notices the other server.
-- ARGV: now, limit      Reply, one each: {id, token, attempt, policy, worker_id}
-- include: common
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local known = redis.call('HMGET', base .. '/server', 'run_id', 'grace', 'lease')
if known[1] ~= server then
  local grace = known[1] and now + tonumber(known[3] or 0) or 0
  redis.call('HSET', base .. '/server', 'run_id', server, 'grace', text(grace))
  known[2] = grace
end
if now < tonumber(known[2] or 0) then return {} end
local lapsed = {}
for n, id in ipairs(redis.call('ZRANGEBYSCORE', base .. '/claims', '-inf', now_text, 'LIMIT', 0, ARGV[2])) do
  local f = redis.call('HMGET', task_key(id), 't', 'a', 'o', 'w')
  lapsed[n] = {id, f[1], tonumber(f[2]), f[3] or '', f[4]}
end
return lapsed
