#!lua flags=no-writes
-- ARGV: now, name      Reply: the schedule (JSON), '' if there is none
-- include: common
return redis.call('HGET', base .. '/schedule/' .. ARGV[2], 'document') or ''
