-- The last position in the feed that holds an event.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  milliseconds for which hints are wanted
-- Reply    that position; 0 if there is none
local meta = call('HMGET', meta_key, 'clock_ms', 'feed_wanted_until')
local now, wanted = clock(meta[1]), tonumber(ARGV[1])
-- One write serves for half of the time that hints are wanted.
if tonumber(meta[2] or 0) < now + wanted / 2 then
  call('HSET', meta_key, 'feed_wanted_until', now + wanted)
end
-- What retention removed is not there to be read, whatever still points to it.
local last = 0
for _, entry in ipairs(call('XREVRANGE', prefix .. 'feed', '+', '-', 'COUNT', 8)) do
  local before = match(entry[1], '^%d+') - 1
  for id, seq, count, offset in string.gmatch(entry[2][2], ROW_OF_FEED) do
    if call('HEXISTS', prefix .. 'run:' .. id, seq) == 1 then last = before + offset + count end
  end
  if last > 0 then return last end
end
return 0
