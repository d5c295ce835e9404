#!lua flags=no-writes
-- The first of these tasks, as many as one answer has room for, and one in any case.
-- ARGV: now, 1 with history or 0 without, ids…
-- Reply: {last number of arrival, …}, one each: {fields and values…, history, end of the lease or ''}, {} if not known
-- include: common
local with_history, bytes = ARGV[2] == '1', 0
local replies = {redis.call('GET', base .. '/seq') or '0'}
for n = 3, #ARGV do
  local fields = redis.call('HGETALL', task_key(ARGV[n]))
  if #fields > 0 then
    local history = with_history and redis.call('LRANGE', history_key(ARGV[n]), 0, -1) or {}
    replies[n - 1] = {fields, history, redis.call('ZSCORE', base .. '/claims', ARGV[n]) or ''}
    for _, value in ipairs(fields) do bytes = bytes + #value end
    for _, entry in ipairs(history) do bytes = bytes + #entry end
    if bytes >= {get_bytes} then break end
  else
    replies[n - 1] = {}
  end
end
return replies
