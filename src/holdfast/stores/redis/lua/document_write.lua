-- A compare-and-set of one document; included by put and put_tasks, which have these arguments in common:
-- ARGV: now, version of the map, epoch or '', kind, name, expected version or '', new version or 0 for the next one, due_at_ms or '',
--       ttl_ms or '', id and token of a claim or '' and '', 1 with a value or 0 to remove the document, value
-- A reply is {-1, current epoch} if the epoch is old; else {applied, reason or '', the document now or '', last number of arrival}.
local kind, name, expected, version, due, ttl = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[9])
local value = ARGV[12] == '1' and ARGV[13] or nil
local current = read_document(kind, name)
local current_version = tonumber(current and string.match(current, '^%d+') or 0)
local paused, step
if kind == 'queue' and value then
  -- A value that is no JSON object fails here, before anything is written.
  local settings = cjson.decode(value)
  paused, step = settings.paused, settings.step_ms
end

local function last_number() return redis.call('GET', base .. '/seq') or '0' end

local function claim_refusal()
  if ARGV[10] == '' then return nil end
  local f = redis.call('HMGET', task_key(ARGV[10]), 's', 't')
  if f[1] == {claimed} and f[2] == ARGV[11] then return nil end
  return f[1] and 'stale_claim' or 'unknown'
end

-- Whether the document is what this write makes of it: only the reply of the first call was lost.
local function is_repeat()
  if not value or not current then return not value and not current end
  if expected == current_version then return false end
  local wanted = version ~= 0 and version or expected and expected + 1 or current_version
  local due_before, start = string.match(current, '^%d+:(%-?%d*):%d*:()')
  return current_version == wanted and due_before == due and string.sub(current, start) == value
end

-- What to answer instead of writing.
local function instead()
  local current_epoch = epoch()
  if ARGV[3] ~= '' and tonumber(ARGV[3]) ~= current_epoch then return {-1, current_epoch} end
  local reason = claim_refusal()
  local done = not reason and is_repeat()
  if not reason and not done and expected and expected ~= current_version then reason = 'version' end
  if not reason and not done then return nil end
  touch()
  return {done and 1 or 0, reason or '', current or '', last_number()}
end

-- Writes the document, and gives it.
local function write()
  if not value then
    if remove_document(kind, name) then notify(name) end
    return ''
  end
  local expires = ttl and text(now + ttl) or ''
  local new_version = text(version ~= 0 and version or current_version + 1)
  local new = new_version .. ':' .. due .. ':' .. expires .. ':' .. value
  redis.call('SET', document_key(kind, name), new)
  redis.call('ZADD', names_key(kind), 0, name)
  if expires == '' then redis.call('ZREM', base .. '/expires', kind .. '/' .. name)
  else redis.call('ZADD', base .. '/expires', expires, kind .. '/' .. name) end
  if due == '' then
    redis.call('ZREM', due_key(kind), name)
  else
    local soonest = redis.call('ZRANGE', due_key(kind), 0, 0, 'WITHSCORES')[2]
    redis.call('ZADD', due_key(kind), due, name)
    if tonumber(due) < tonumber(soonest or 'inf') then notify({maintenance_wakeup}) end
  end
  if kind == 'map' then redis.call('SET', base .. '/map', new_version)
  elseif kind == 'queue' and set_queue(name, paused, step) then notify(name) end
  return new
end
