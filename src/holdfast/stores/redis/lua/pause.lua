#!lua flags=allow-oom
-- ARGV: now, queue, 1 or 0
-- include: common
if ARGV[3] == '1' then
  redis.call('SADD', base .. '/paused', ARGV[2])
else
  redis.call('SREM', base .. '/paused', ARGV[2])
  ring(ARGV[2])
end
finish()
return 1
