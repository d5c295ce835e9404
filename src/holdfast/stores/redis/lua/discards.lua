#!lua flags=no-writes
-- ARGV: now, limit      Reply: records (msgpack), newest first
-- include: common
return redis.call('LRANGE', base .. '/discards', 0, tonumber(ARGV[2]) - 1)
