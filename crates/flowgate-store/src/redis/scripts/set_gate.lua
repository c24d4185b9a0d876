-- Sets the gate of a flow in a partition, unless it is there at this generation or a later one.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  flow
-- ARGV[2]  generation
-- ARGV[3]  whether it holds what starts (1, 0)
-- ARGV[4]  whether it is set only if the flow holds no run in the partition (1, 0)
-- Reply    0 if it is set, 1 if runs are held
local gates_key = prefix .. 'gates'
local there = call('HGET', gates_key, ARGV[1])
if there and tonumber(match(there, '^%d+')) >= tonumber(ARGV[2]) then return { 0 } end
if ARGV[4] == '1' and call('ZCARD', prefix .. 'held:' .. ARGV[1]) > 0 then return { 1 } end
call('HSET', gates_key, ARGV[1], ARGV[2] .. ';' .. ARGV[3])
return { 0 }
