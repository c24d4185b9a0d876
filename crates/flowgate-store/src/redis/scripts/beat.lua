-- Notes that an instance is there, and forgets those that have been silent for too long.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  instance
-- ARGV[2]  what it says, as JSON
-- ARGV[3]  milliseconds after which a silent one is forgotten
-- Reply    nothing
local now = clock(call('HGET', meta_key, 'clock_ms'))
local rows, seen = prefix .. 'instances', prefix .. 'instances:seen'
for _, silent in ipairs(call('ZRANGEBYSCORE', seen, '-inf', now - ARGV[3], 'LIMIT', 0, 1000)) do
  call('HDEL', rows, silent)
  call('ZREM', seen, silent)
end
local known = call('HGET', rows, ARGV[1])
local head = known and match(known, '^%d+;%d+;')
if not head then head = format('%d;%d;', now, call('HINCRBY', meta_key, 'instance', 1)) end
call('HSET', rows, ARGV[1], head .. format('%d;', now) .. ARGV[2])
call('ZADD', seen, now, ARGV[1])
