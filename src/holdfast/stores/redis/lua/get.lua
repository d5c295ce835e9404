#!lua flags=no-writes
-- ARGV: now, ids…      Reply: {last number of arrival, …}, one each: {fields and values…, history, end of the lease or ''}, {} if not known
-- include: common
local replies = {redis.call('GET', base .. '/seq') or '0'}
for n = 2, #ARGV do
  local fields = redis.call('HGETALL', task_key(ARGV[n]))
  if #fields > 0 then
    replies[n] = {fields, redis.call('LRANGE', history_key(ARGV[n]), 0, -1),
                       redis.call('ZSCORE', base .. '/claims', ARGV[n]) or ''}
  else
    replies[n] = {}
  end
end
return replies
