#!lua flags=allow-oom
-- Renews the leases of current claims; a lease is never shortened.
-- ARGV: now, lease_ms, holds (msgpack: [id, token, has_progress]…), progress of those that have some…
-- Reply, one each: {held, cancel_requested, reason}
-- include: common
local lease, next_progress = tonumber(ARGV[2]), 4
local replies = {}
for n, hold in ipairs(cmsgpack.unpack(ARGV[3])) do
  local id, token, has_progress = unpack(hold, 1, 3)
  local progress
  if has_progress then
    progress = ARGV[next_progress]
    next_progress = next_progress + 1
  end
  local f = redis.call('HMGET', task_key(id), 's', 't', 'z')
  if f[1] == {claimed} and f[2] == token then
    redis.call('ZADD', base .. '/claims', 'GT', text(now + lease), id)
    if progress then redis.call('HSET', task_key(id), 'g', progress) end
    replies[n] = {1, f[3] and 1 or 0, ''}
  else
    replies[n] = {0, 0, f[1] and 'stale_claim' or 'unknown'}
  end
end
return replies
