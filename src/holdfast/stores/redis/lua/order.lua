#!lua flags=allow-oom
-- Leaves orders for a worker that is on the list; they go with its record.
-- ARGV: now, worker_id, orders (JSON)      Reply: 1, or 0 if there is no such worker
-- include: common
if redis.call('HEXISTS', base .. '/workers', ARGV[2]) == 0 then return 0 end
redis.call('HSET', base .. '/orders', ARGV[2], ARGV[3])
return 1
