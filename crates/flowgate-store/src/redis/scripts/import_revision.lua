-- Keeps a revision as another store had it, unless it is there.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  flow
-- ARGV[2]  revision
-- ARGV[3]  the revision as JSON
-- ARGV[4]  when it was registered
-- ARGV[5]  whether it was active (1, 0)
-- ARGV[6]  who registered it and what for, as JSON
-- Reply    1 if it was not there
local key = prefix .. 'revisions:' .. ARGV[1]
if call('HEXISTS', key, ARGV[2]) == 1 then return 0 end
local order = call('HINCRBY', meta_key, 'revision', 1)
call('HSET', key, ARGV[2], format('%s;%d;', ARGV[4], order) .. ARGV[3])
call('HSET', prefix .. 'authors:' .. ARGV[1], ARGV[2], ARGV[6])
call('SADD', prefix .. 'flows', ARGV[1])
if ARGV[5] == '1' then call('HSETNX', prefix .. 'active', ARGV[1], ARGV[2]) end
return 1
