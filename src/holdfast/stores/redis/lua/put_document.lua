#!lua flags=allow-oom
-- Replaces or removes a document of the expected version. Also on a full server: a token can be revoked there too.
-- ARGV: now, kind, name, expected version, document (none: remove it)      Reply: 1, or 0 if it has another version
-- include: common
local key, name, expected, document = base .. '/documents/' .. ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local current = redis.call('HGET', key, name)
local new = document and text(expected + 1) .. ':' .. document
if tonumber(current and string.match(current, '^%d+') or 0) ~= expected then
  if (current or nil) ~= new then return 0 end
  touch()
elseif new then
  redis.call('HSET', key, name, new)
else
  redis.call('HDEL', key, name)
  touch()
end
return 1
