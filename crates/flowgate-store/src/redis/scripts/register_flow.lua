-- Keeps a revision of a flow and makes it the active one.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  flow
-- ARGV[2]  revision
-- ARGV[3]  the revision as JSON
-- ARGV[4]  who registers it and what for, as JSON
-- Reply    nothing
local now = clock(call('HGET', meta_key, 'clock_ms'))
local key = prefix .. 'revisions:' .. ARGV[1]
local known = call('HGET', key, ARGV[2])
local head = known and match(known, '^%d+;%d+;')
if not head then
  head = format('%d;%d;', now, call('HINCRBY', meta_key, 'revision', 1))
  call('HSET', prefix .. 'authors:' .. ARGV[1], ARGV[2], ARGV[4])
end
call('HSET', key, ARGV[2], head .. ARGV[3])
call('SADD', prefix .. 'flows', ARGV[1])
call('HSET', prefix .. 'active', ARGV[1], ARGV[2])
