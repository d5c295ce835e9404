#!lua flags=allow-oom
-- Due tasks become ready, the longest due first, never one before its time. Notifies the queues in which ready tasks wait: the worker
-- that took the last wake-up may have died of its task.
-- ARGV: now, epoch, limit      Reply: {count, ms until the next is due or -1}, or {-1, current epoch} if the epoch is old
-- include: common
-- include: indexes
local current = epoch()
if tonumber(ARGV[2]) ~= current then return {-1, current} end
local ids = redis.call('ZRANGEBYSCORE', base .. '/due', '-inf', now_text, 'LIMIT', 0, ARGV[3])
for _, id in ipairs(ids) do
  local f = redis.call('HMGET', task_key(id), 's', 'q', 'y', 'p', 'r')
  redis.call('ZREM', base .. '/due', id)
  redis.call('HSET', task_key(id), 's', {ready})
  make_ready(id, f[2], f[3], tonumber(f[4]), tonumber(f[5]))
  count(f[2], f[1], -1)
  count(f[2], {ready}, 1)
end
local next_due = redis.call('ZRANGE', base .. '/due', 0, 0, 'WITHSCORES')
flush_ready()
-- With thousands of queues a part of them in each call, so that no call holds up the others.
local counted = redis.call('HSCAN', base .. '/n', redis.call('HGET', base .. '/server', 'notified') or '0', 'COUNT', {counts_looked_through})
for n = 1, #counted[2], 2 do
  local queue = string.match(counted[2][n], '^(.*)/' .. {ready} .. '$')
  if queue and redis.call('SISMEMBER', base .. '/paused', queue) == 0 then notify(queue) end
end
if counted[1] ~= '0' then redis.call('HSET', base .. '/server', 'notified', counted[1])
else redis.call('HDEL', base .. '/server', 'notified') end
finish()
return {#ids, next_due[2] and math.max(0, tonumber(next_due[2]) - now) or -1}
