#!lua flags=no-writes
-- ARGV: now      Reply: {now, {QUEUE/STATE, count…}, {paused queue…}, {queue, when the first ready task of one of its priorities became ready…}, {queue, step_ms…}}
-- include: common
local counted, oldest = redis.call('HGETALL', base .. '/n'), {}
for n = 1, #counted, 2 do
  local queue = string.match(counted[n], '^(.*)/' .. {ready} .. '$')
  if queue then
    local priorities = redis.call('SMEMBERS', levels_key(queue))
    priorities[#priorities + 1] = 0
    for _, priority in ipairs(priorities) do
      local first = redis.call('ZRANGE', types_key(queue, tonumber(priority)), 0, 0, 'WITHSCORES')[2]
      if first then
        oldest[#oldest + 1] = queue
        oldest[#oldest + 1] = first
      end
    end
  end
end
return {now_text, counted, redis.call('SMEMBERS', base .. '/paused'), oldest, redis.call('HGETALL', base .. '/steps')}
