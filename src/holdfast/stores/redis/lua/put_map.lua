#!lua flags=allow-oom
-- Replaces the partition map, if it is still the one that was looked at, or is the new one already.
-- ARGV: now, version looked at, new version, new map (JSON)      Reply: 1, or 0 if it has changed
-- include: common
local f = redis.call('HMGET', base .. '/map', 'version', 'map')
if tonumber(f[1] or 0) ~= tonumber(ARGV[2]) and f[2] ~= ARGV[4] then return 0 end
redis.call('HSET', base .. '/map', 'version', ARGV[3], 'map', ARGV[4])
return 1
