#!lua flags=allow-oom
-- Replaces or removes a schedule without a tick. Also on a full server: one that fills it can be paused.
-- ARGV: now, …      Reply: see scheduling.lua
-- include: common
-- include: scheduling
local other = instead()
if other then return other end
put()
finish()
return {1, tonumber(redis.call('GET', base .. '/seq') or 0)}
