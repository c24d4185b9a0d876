-- Removes records that have expired, a bounded number of them.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  records at most
-- Reply    how many were removed
local now = clock(call('HGET', meta_key, 'clock_ms'))
local expiring = prefix .. 'records:expiring'
local over = call('ZRANGEBYSCORE', expiring, '-inf', now, 'LIMIT', 0, ARGV[1])
for _, member in ipairs(over) do
  local kind, key = match(member, '^([^:]*):(.*)$')
  call('ZREM', prefix .. 'keys:' .. kind, key)
  call('HDEL', prefix .. 'record:' .. kind, key)
  call('HDEL', prefix .. 'value:' .. kind, key)
  -- Last of all: if something fails before it, the next sweep finds the record again.
  call('ZREM', expiring, member)
end
return #over
