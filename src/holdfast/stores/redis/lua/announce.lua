#!lua flags=allow-oom
-- A worker lives, for a while; a ttl of 0 takes it off the list, and its orders with it.
-- ARGV: now, worker_id, record, ttl_ms      Reply: its document of orders, or ''
-- include: common
-- include: document
local id, ttl = ARGV[2], tonumber(ARGV[4])
if ttl <= 0 then
  redis.call('HDEL', base .. '/workers', id)
  redis.call('HDEL', base .. '/beats', id)
  remove_document('orders', id)
  return ''
end
local before = redis.call('HGET', base .. '/beats', id)
local started = before and cmsgpack.unpack(before)[1] or now
redis.call('HSET', base .. '/workers', id, ARGV[3])
redis.call('HSET', base .. '/beats', id, cmsgpack.pack({started, now, now + ttl}))
return read_document('orders', id) or ''
