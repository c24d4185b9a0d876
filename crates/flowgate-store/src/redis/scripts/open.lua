-- Makes the partition if there is none, and says what it is. Of what is there only the format is
-- changed: what was written in an older one that is taken over is read as it is.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  format
-- ARGV[2]  number of partitions
-- ARGV[3]  this partition
-- ARGV[4]  epoch of the log: random
-- ARGV[5]  oldest format that is taken over
-- Reply    format, number of partitions and epoch of what is there
local there = tonumber(call('HGET', meta_key, 'format'))
if not there then
  call('HSET', meta_key, 'format', ARGV[1], 'partitions', ARGV[2], 'partition', ARGV[3],
    'log_epoch', ARGV[4], 'position', 0, 'token', 0, 'clock_ms', 0)
elseif there >= tonumber(ARGV[5]) and there < tonumber(ARGV[1]) then
  call('HSET', meta_key, 'format', ARGV[1])
end
return call('HMGET', meta_key, 'format', 'partitions', 'log_epoch')
