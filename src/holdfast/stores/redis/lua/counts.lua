#!lua flags=no-writes
-- ARGV: now      Reply: {now, {QUEUE/STATE, count…}, {paused queue…}, {queue, when the first task of one of its lanes became ready…}, {queue, step_ms…}}
-- include: common
local counted, oldest = redis.call('HGETALL', base .. '/n'), {}
for n = 1, #counted, 2 do
  local queue = string.match(counted[n], '^(.*)/' .. {ready} .. '$')
  if queue then
    for _, lane in ipairs(redis.call('SMEMBERS', lanes_key(queue))) do
      oldest[#oldest + 1] = queue
      oldest[#oldest + 1] = redis.call('ZRANGE', ready_key(queue, lane), 0, 0, 'WITHSCORES')[2]
    end
  end
end
return {now_text, counted, redis.call('SMEMBERS', base .. '/paused'), oldest, redis.call('HGETALL', base .. '/steps')}
