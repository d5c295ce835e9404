#!lua flags=no-writes
-- ARGV: now, kind      Reply: {name, version:document, …}
-- include: common
return redis.call('HGETALL', base .. '/documents/' .. ARGV[2])
