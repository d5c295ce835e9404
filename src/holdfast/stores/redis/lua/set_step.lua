#!lua flags=allow-oom
-- What a level of priority is worth in a queue; the usual step is not kept.
-- ARGV: now, queue, step_ms
-- include: common
if tonumber(ARGV[3]) == {step_ms} then redis.call('HDEL', base .. '/steps', ARGV[2])
else redis.call('HSET', base .. '/steps', ARGV[2], ARGV[3]) end
return 1
