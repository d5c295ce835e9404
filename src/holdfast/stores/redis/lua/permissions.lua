#!lua flags=no-writes
-- Which commands of the scripts this user may not run. A script that only reads is told of a missing permission before it is told
-- that it must not write, so that nothing is written.
-- ARGV: now, a key      Reply: names of commands, {'*'} if the key is not the user's
local key = ARGV[2]
local ONLY_KEY = {'DEL', 'GET', 'HGETALL', 'LLEN', 'SMEMBERS', 'ZCARD', 'ZPOPMIN'}
local ONE_MORE = {
  'HDEL', 'HEXISTS', 'HGET', 'HMGET', 'HSCAN', 'HSTRLEN', 'INCRBY', 'LINDEX', 'PEXPIRE', 'RPUSH', 'SADD', 'SET', 'SISMEMBER', 'SREM',
  'ZMSCORE', 'ZREM', 'ZSCAN', 'ZSCORE',
}
local TWO_MORE = {'HINCRBY', 'HSET', 'LRANGE', 'LTRIM', 'ZADD', 'ZRANGE', 'ZRANGEBYSCORE'}

local missing = {}
local function try(...)
  local answer = redis.pcall(...)
  local error = type(answer) == 'table' and answer.err or ''
  if string.find(error, "can't access") or string.find(error, 'permissions to access') then return true end
  if string.find(error, 'permission') or string.find(error, "can't run") then missing[#missing + 1] = (...) end
end

if try('EXISTS', key) then return {'*'} end
try('TIME')
try('INFO', 'server')
for _, name in ipairs(ONLY_KEY) do try(name, key) end
for _, name in ipairs(ONE_MORE) do try(name, key, '0') end
for _, name in ipairs(TWO_MORE) do try(name, key, '0', '0') end
return missing
