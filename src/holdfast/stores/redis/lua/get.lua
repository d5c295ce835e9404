#!lua flags=no-writes
-- ARGV: now, ids…      Reply, one each: {fields and values…, history, end of the lease or ''}, {} if not known
-- include: common
local replies = {}
for n = 2, #ARGV do
  local fields = redis.call('HGETALL', task_key(ARGV[n]))
  if #fields > 0 then
    replies[n - 1] = {fields, redis.call('LRANGE', history_key(ARGV[n]), 0, -1),
                       redis.call('ZSCORE', base .. '/claims', ARGV[n]) or ''}
  else
    replies[n - 1] = {}
  end
end
return replies
