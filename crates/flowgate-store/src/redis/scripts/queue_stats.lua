-- What waits in each queue, after jobs whose lease is over went back to their queues.
--
-- KEYS[1]  prefix of the partition
-- Reply    for each queue with jobs an array: queue, jobs that are due, jobs that are due later,
--   when the one that is due for longest became so, in microseconds (-1 if none is due)
local now = clock(call('HGET', meta_key, 'clock_ms'))
expire(now, 1000)
local replies = {}
for _, queue in ipairs(call('SMEMBERS', prefix .. 'queues')) do
  local key = prefix .. 'queue:' .. queue
  local all = call('ZCARD', key)
  if all > 0 then
    local due, oldest = call('ZCOUNT', key, '-inf', now * 1000 + 999), -1
    if due > 0 then oldest = tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) end
    replies[#replies + 1] = { queue, due, all - due, oldest }
  end
end
return replies
