-- Says when the next jobs are due, after jobs whose lease is over went back to their queues.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  jobs at most
-- ARGV[2]  milliseconds for which hints are wanted; 0 for none
-- ARGV[3]  number of queues, or -1 for all, or -1 - n for all but n; then their names,
--   and `@` and a pool for all of that pool too
-- Reply    time, deadline of the lease that ends first (-1 for none), and where the first jobs stand
--   in their queues: when they are due, in microseconds, or before if they are due already
local meta = call('HMGET', meta_key, 'clock_ms', 'due_wanted_until')
local now = clock(meta[1])
local wanted = tonumber(ARGV[2])
expire(now, 1000)
-- One write serves for half of the time that hints are wanted.
if wanted > 0 and tonumber(meta[2] or 0) < now + wanted / 2 then
  call('HSET', meta_key, 'due_wanted_until', now + wanted)
end
local queues, chosen = {}, tonumber(ARGV[3])
if chosen < 0 then
  local left_out = {}
  for at = 4, 2 - chosen do left_out[ARGV[at]] = true end
  for _, queue in ipairs(call('SMEMBERS', prefix .. 'queues')) do
    if is_wanted(queue, left_out) then queues[#queues + 1] = queue end
  end
else
  for at = 4, 3 + chosen do queues[#queues + 1] = ARGV[at] end
end
local heads = {}
for _, queue in ipairs(queues) do
  local found = call('ZRANGE', prefix .. 'queue:' .. queue, 0, ARGV[1] - 1, 'WITHSCORES')
  for at = 2, #found, 2 do heads[#heads + 1] = tonumber(found[at]) end
end
table.sort(heads)
local lease = call('ZRANGE', leases_key, 0, 0, 'WITHSCORES')
local replies = { now, tonumber(lease[2] or -1) }
for at = 1, math.min(#heads, tonumber(ARGV[1])) do replies[#replies + 1] = heads[at] end
return replies
