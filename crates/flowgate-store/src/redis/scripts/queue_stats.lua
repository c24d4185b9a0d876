-- What waits in each queue, after jobs whose lease is over went back to their queues.
--
-- KEYS[1]  prefix of the partition
-- Reply    for each queue with jobs an array: queue, jobs that are due, jobs that are due later,
--   when the one that is due for longest became so, in microseconds (-1 if none is due)
local LOOKED_MAX = 1000
local now = clock(call('HGET', meta_key, 'clock_ms'))
local due_max = now * 1000 + 999
local replies = {}
expire(now, 1000)

-- Nobody stands behind the time at which it is due, so whoever stands behind the oldest that was
-- found is not older. It looks at a bounded number; a job that is due for longer behind so many of
-- higher priority is counted, not shown.
local function oldest_due(key)
  local oldest, looked, size = due_max, 0, 1
  while looked < LOOKED_MAX do
    local found = call('ZRANGEBYSCORE', key, '-inf', oldest, 'WITHSCORES', 'LIMIT', looked, size)
    for at = 1, #found, 2 do
      local member, order = found[at], tonumber(found[at + 1])
      if order >= oldest then return oldest end
      local state = call('HGET', prefix .. 'run:' .. sub(member, 1, 36), 'job:' .. sub(member, 38))
      local due = state and match(state, '^Q%d;%d+;%d+;%d+;(%d+);')
      oldest = math.min(oldest, tonumber(due or order))
    end
    if #found < 2 * size then return oldest end
    looked, size = looked + size, size * 4
  end
  return oldest
end

for _, queue in ipairs(call('SMEMBERS', prefix .. 'queues')) do
  local key = prefix .. 'queue:' .. queue
  local all = call('ZCARD', key)
  if all > 0 then
    local due = call('ZCOUNT', key, '-inf', due_max)
    replies[#replies + 1] = { queue, due, all - due, due > 0 and oldest_due(key) or -1 }
  end
end
return replies
