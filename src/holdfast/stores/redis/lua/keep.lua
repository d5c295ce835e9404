#!lua flags=allow-oom
-- Keeps a value under a key, if the claim is current and the key is free. Also on a full server: what it stands for has happened.
-- ARGV: now, key, value, ttl_ms, id and token of the claim ('' and '' for none)      Reply: {reason or '', value} or {reason} for no value
-- include: common
-- include: keeping
local key, ttl, id, token = ARGV[2], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local reason = ''
if id ~= '' then
  local f = redis.call('HMGET', task_key(id), 's', 't')
  if f[1] ~= {claimed} or f[2] ~= token then reason = f[1] and 'stale_claim' or 'unknown' end
end
local value = kept(key)
if not value and reason == '' then
  value = ARGV[3]
  redis.call('SET', kept_key(key), value)
  redis.call('ZADD', base .. '/kept', text(now + ttl), key)
else
  touch()
end
return {reason, value or nil}
