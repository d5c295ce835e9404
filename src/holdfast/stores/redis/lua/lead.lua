#!lua flags=allow-oom
-- Takes or renews a leadership that no other owner has; a ttl of 0 lets it go; without an owner it is only looked at.
-- ARGV: now, name, owner or '', ttl_ms      Reply: {leader or '', epoch, 1 if the caller leads, expires_in_ms}
-- include: common
local key, owner, ttl = base .. '/leader/' .. ARGV[2], ARGV[3], tonumber(ARGV[4])
local f = redis.call('HMGET', key, 'owner', 'epoch', 'expires', 'ttl')
local leader, number, expires, asked = f[1] or '', tonumber(f[2] or 0), tonumber(f[3] or 0), tonumber(f[4] or 0)
if asked > 0 and expires > now + asked then
  -- Taken before the clock was set back: from now on for no longer than it was asked for.
  expires = now + asked
  if owner ~= '' then redis.call('HSET', key, 'expires', text(expires)) end
end
local running = expires > now
if running and leader ~= owner then return {leader, number, 0, expires - now} end
if owner == '' then return {'', number, 0, 0} end
if ttl <= 0 then
  if running then redis.call('HSET', key, 'expires', now_text) end
  return {'', number, 0, 0}
end
if not running then number = number + 1 end
redis.call('HSET', key, 'owner', owner, 'epoch', number, 'expires', text(now + ttl), 'ttl', ARGV[4])
return {owner, number, 1, ttl}
