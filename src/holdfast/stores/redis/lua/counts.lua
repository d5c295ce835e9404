#!lua flags=no-writes
-- ARGV: now      Reply: {now, {QUEUE/STATE, count…}, {paused queue…}, {queue, run_at of its first ready task…}}
-- include: common
local counted = redis.call('HGETALL', base .. '/n')
local oldest = {}
for n = 1, #counted, 2 do
  local queue = string.match(counted[n], '^(.*)/' .. {ready} .. '$')
  if queue then
    for _, type in ipairs(redis.call('SMEMBERS', base .. '/types/' .. queue)) do
      local first = redis.call('ZRANGE', ready_key(queue, type), 0, 0)[1]
      oldest[#oldest + 1] = queue
      oldest[#oldest + 1] = redis.call('HGET', task_key(first), 'r')
    end
  end
end
return {now_text, counted, redis.call('SMEMBERS', base .. '/paused'), oldest}
