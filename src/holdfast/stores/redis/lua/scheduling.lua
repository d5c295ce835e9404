-- Replaces a schedule; included by put_schedule and tick, which have these arguments in common:
-- ARGV: now, version of the map, epoch or '', name, expected version, new version, next_at_ms or '' for no next tick, document (JSON) or '' to remove it
-- A reply is {-1, current epoch} if the epoch is old, {0} if the version is another one; else {1, last number of arrival}.
local name, expected, version, next_at, document = ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8]
local schedule_key = base .. '/schedule/' .. name

-- What to answer instead of doing it: it may not be done, or has been done and only its reply was lost.
local function instead()
  local current_epoch = epoch()
  if ARGV[3] ~= '' and tonumber(ARGV[3]) ~= current_epoch then return {-1, current_epoch} end
  local f = redis.call('HMGET', schedule_key, 'version', 'document')
  if tonumber(f[1] or 0) == expected then return nil end
  if (f[2] or '') ~= document then return {0} end
  touch()
  return {1, tonumber(redis.call('GET', base .. '/seq') or 0)}
end

local function put()
  if document == '' then
    redis.call('DEL', schedule_key)
    redis.call('ZREM', base .. '/ticks', name)
    return
  end
  local soonest = redis.call('ZRANGE', base .. '/ticks', 0, 0, 'WITHSCORES')[2]
  redis.call('HSET', schedule_key, 'version', version, 'document', document)
  redis.call('ZADD', base .. '/ticks', next_at == '' and '+inf' or next_at, name)
  if next_at ~= '' and tonumber(next_at) < tonumber(soonest or 'inf') then ring({upkeep_bell}) end
end
