#!lua flags=no-writes
-- ARGV: now      Reply: {now, {record, beats}…}, beats being msgpack [started, seen, expires]
-- include: common
local replies = { now_text }
local records = redis.call('HGETALL', base .. '/workers')
for n = 1, #records, 2 do
  replies[#replies + 1] = {records[n + 1], redis.call('HGET', base .. '/beats', records[n])}
end
return replies
