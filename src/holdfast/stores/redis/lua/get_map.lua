#!lua flags=no-writes
-- ARGV: now      Reply: the partition map (JSON), '' if there is none
-- include: common
return redis.call('HGET', base .. '/map', 'map') or ''
