#!lua flags=no-writes
-- ARGV: now, kind, name      Reply: version:document, '' if there is none
-- include: common
return redis.call('HGET', base .. '/documents/' .. ARGV[2], ARGV[3]) or ''
