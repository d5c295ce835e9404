-- Values under keys. The end of their time stands in a set of its own, by our clock, so the server forgets none by itself.
local function kept_key(key) return base .. '/kept/' .. key end

local function kept(key)
  local expires = redis.call('ZSCORE', base .. '/kept', key)
  return expires and tonumber(expires) > now and redis.call('GET', kept_key(key))
end
