#!lua flags=allow-oom
-- Tasks that no worker ever began and whose deadline to start has passed, the oldest first. The deadlines of those that
-- have begun or ended are forgotten here, so that enqueue is the only one to pay for them before.
-- ARGV: now, limit      Reply: {how many were forgotten, ids…}
-- include: common
local MAY_EXPIRE = {may_expire}
local reply, forgotten = {0}, {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', base .. '/deadlines', '-inf', now_text, 'LIMIT', 0, ARGV[2])) do
  local f = redis.call('HMGET', task_key(id), 's', 'd')
  if f[1] and MAY_EXPIRE[f[1]] and f[2] == '0' then
    reply[#reply + 1] = id
  else
    forgotten[#forgotten + 1] = id
  end
end
if #forgotten > 0 then redis.call('ZREM', base .. '/deadlines', unpack(forgotten)) end
reply[1] = #forgotten
return reply
