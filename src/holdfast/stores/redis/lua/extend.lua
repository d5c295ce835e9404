#!lua flags=allow-oom
-- Renews the leases of current claims; a lease is never shortened, unless it was given before the clock was set back.
-- ARGV: now, lease_ms, 1 to only look or 0, holds (msgpack: [id, token, has_progress]…), progress of those that have some…
-- Reply, one each: {held, cancel_requested, reason}
-- include: common
local lease, check_only, next_progress = tonumber(ARGV[2]), ARGV[3] == '1', 5

local function renew(id, longest)
  longest = tonumber(longest or {default_lease_ms})
  if lease > longest then
    longest = lease
    redis.call('HSET', task_key(id), 'x', text(lease))
  end
  if tonumber(redis.call('ZSCORE', base .. '/claims', id)) > now + longest then
    redis.call('ZADD', base .. '/claims', text(now + longest), id)
  else
    redis.call('ZADD', base .. '/claims', 'GT', text(now + lease), id)
  end
end

local replies = {}
for n, hold in ipairs(cmsgpack.unpack(ARGV[4])) do
  local id, token, has_progress = unpack(hold, 1, 3)
  local progress
  if has_progress then
    progress = ARGV[next_progress]
    next_progress = next_progress + 1
  end
  local f = redis.call('HMGET', task_key(id), 's', 't', 'z', 'x')
  if f[1] == {claimed} and f[2] == token then
    if not check_only then
      renew(id, f[4])
      if progress then redis.call('HSET', task_key(id), 'g', progress) end
    end
    replies[n] = {1, f[3] and 1 or 0, ''}
  else
    replies[n] = {0, 0, f[1] and 'stale_claim' or 'unknown'}
  end
end
return replies
