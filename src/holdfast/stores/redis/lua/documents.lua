#!lua flags=no-writes
-- A page of documents of a kind, or a part of it without any if those have expired; never more than {page_bytes} bytes and more than one.
-- ARGV: now, kind, limit, then 'first'; or 'after', where the last page ended; or 'due', due_within_ms, how many to pass over; or 'names', names…
-- Reply: {now, 1 if there are more, where to go on, name, document, …}
-- include: common
-- include: document
local kind, limit, mode = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local newest_first = kind == 'discard'

-- One more than the limit: whether there is a next page. Names and, one by one with them, where to go on after each.
local function candidates()
  local key = names_key(kind)
  if mode == 'names' then
    local names = {unpack(ARGV, 5)}
    return names, names
  elseif mode == 'due' then
    local names, places = redis.call('ZRANGEBYSCORE', due_key(kind), '-inf', text(now + tonumber(ARGV[5])), 'LIMIT', ARGV[6], limit + 1), {}
    for n = 1, #names do places[n] = text(ARGV[6] + n) end
    return names, places
  elseif newest_first then
    local from = mode == 'after' and '(' .. ARGV[5] or '+inf'
    local found, names, places = redis.call('ZRANGE', key, from, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, limit + 1, 'WITHSCORES'), {}, {}
    for n = 1, #found, 2 do
      names[#names + 1] = found[n]
      places[#places + 1] = found[n + 1]
    end
    return names, places
  end
  local names = redis.call('ZRANGE', key, mode == 'after' and '(' .. ARGV[5] or '-', '+', 'BYLEX', 'LIMIT', 0, limit + 1)
  return names, names
end

local names, places = candidates()
local reply, bytes = {now_text, 0, ''}, 0
for n, name in ipairs(names) do
  local found = read_document(kind, name)
  bytes = bytes + #(found or '')
  if n > limit or (bytes > {page_bytes} and #reply > 3) then
    reply[2] = 1
    break
  end
  reply[3] = places[n]
  if found then
    reply[#reply + 1] = name
    reply[#reply + 1] = found
  end
end
return reply
