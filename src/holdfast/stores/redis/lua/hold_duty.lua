#!lua flags=allow-oom
-- Takes or keeps a duty that nobody else holds; a ttl of 0 lets it go.
-- ARGV: now, name, owner, ttl_ms      Reply: {owner, epoch, held, expires_in_ms}
-- include: common
local key, owner, ttl = base .. '/duty/' .. ARGV[2], ARGV[3], tonumber(ARGV[4])
local f = redis.call('HMGET', key, 'owner', 'epoch', 'expires')
local holder, number, expires = f[1] or '', tonumber(f[2] or 0), tonumber(f[3] or 0)
local running = expires > now
if running and holder ~= owner then return {holder, number, 0, expires - now} end
if ttl <= 0 then
  if running then redis.call('HSET', key, 'expires', now_text) end
  return {'', number, 0, 0}
end
if not running then number = number + 1 end
redis.call('HSET', key, 'owner', owner, 'epoch', number, 'expires', text(now + ttl))
return {owner, number, 1, ttl}
