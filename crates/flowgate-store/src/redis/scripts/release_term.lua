-- Ends a term if it is still held.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  name
-- ARGV[2]  number of the term
-- Reply    nothing
local now = clock(call('HGET', meta_key, 'clock_ms'))
local last = call('HGET', prefix .. 'terms', ARGV[1])
if not last then return end
local number, began, expires, holder = match(last, '^(%d+);(%d+);(%d+);;(.*)$')
if number == ARGV[2] and tonumber(expires) > now then
  local ended = format('%s;%s;%d;%d;', number, began, now, now)
  call('HSET', prefix .. 'terms', ARGV[1], ended .. holder)
end
