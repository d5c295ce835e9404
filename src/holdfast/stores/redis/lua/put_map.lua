#!lua flags=allow-oom
-- Replaces the partition map, if it is still the one that was looked at.
-- ARGV: now, version looked at, new version, new map (JSON)      Reply: 1, or 0 if it has changed
-- include: common
local current = tonumber(redis.call('HGET', base .. '/map', 'version') or 0)
if current ~= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', base .. '/map', 'version', ARGV[3], 'map', ARGV[4])
return 1
