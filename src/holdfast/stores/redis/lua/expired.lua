#!lua flags=no-writes
-- Claims whose lease has run out, the oldest first.
-- ARGV: now, limit      Reply, one each: {id, token, attempt, policy, worker_id}
-- include: common
local lapsed = {}
for n, id in ipairs(redis.call('ZRANGEBYSCORE', base .. '/claims', '-inf', now_text, 'LIMIT', 0, ARGV[2])) do
  local f = redis.call('HMGET', task_key(id), 't', 'a', 'o', 'w')
  lapsed[n] = {id, f[1], tonumber(f[2]), f[3] or '', f[4]}
end
return lapsed
