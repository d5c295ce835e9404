#!lua flags=no-writes
-- Schedules by their next tick, those without one last.
-- ARGV: now, due_within_ms or '' for all, limit      Reply: {now, schedule (JSON)…}
-- include: common
local last = ARGV[2] == '' and '+inf' or text(now + tonumber(ARGV[2]))
local reply = { now_text }
for n, name in ipairs(redis.call('ZRANGEBYSCORE', base .. '/ticks', '-inf', last, 'LIMIT', 0, ARGV[3])) do
  reply[n + 1] = redis.call('HGET', base .. '/schedule/' .. name, 'document')
end
return reply
