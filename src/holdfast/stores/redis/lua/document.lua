-- Documents: each one string, VERSION:DUE:EXPIRES:VALUE, with times in ms or nothing. They expire by our clock, so the server deletes
-- none by itself.
local function document_key(kind, name) return base .. '/document/' .. kind .. '/' .. name end
-- All of a kind, by name; those of `discard` by the order in which they were discarded.
local function names_key(kind) return base .. '/names/' .. kind end
local function due_key(kind) return base .. '/due/' .. kind end

-- Nil if there is none, or it has expired.
local function read_document(kind, name)
  local found = redis.call('GET', document_key(kind, name))
  if not found then return nil end
  local expires = string.match(found, '^%d+:%-?%d*:(%d*):')
  return (expires == '' or tonumber(expires) > now) and found or nil
end

-- What follows from the settings of a queue where `reserve` reads them; true if the queue was paused and is not any more.
local function set_queue(queue, paused, step)
  if step and step ~= {step_ms} then redis.call('HSET', base .. '/steps', queue, text(step))
  else redis.call('HDEL', base .. '/steps', queue) end
  if paused then redis.call('SADD', base .. '/paused', queue)
  else return redis.call('SREM', base .. '/paused', queue) == 1 end
end

local function remove_document(kind, name)
  redis.call('DEL', document_key(kind, name))
  redis.call('ZREM', names_key(kind), name)
  redis.call('ZREM', due_key(kind), name)
  redis.call('ZREM', base .. '/expires', kind .. '/' .. name)
  if kind == 'queue' then return set_queue(name) end
  if kind == 'map' then redis.call('DEL', base .. '/map') end
end
